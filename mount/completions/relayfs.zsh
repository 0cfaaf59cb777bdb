#compdef relayfs mount.relayfs
# zsh completion for relayfs(8); belongs into share/zsh/site-functions/ under the name _relayfs

_relayfs_options() {
	local own=(store= size= user_size= user_files= control_mode= counters= crashed= crashed_size= watchdog= log= trusted trigger_run fsname=)
	local fuse=(allow_other ro nosuid nodev noexec noatime nodiratime sync dirsync rw suid dev exec atime diratime async)
	compset -P '*,'
	if compset -P '*='; then
		_files
	else
		compadd -S '' -- $own $fuse
	fi
}

_arguments -s \
	'(-f --foreground)'{-f,--foreground}'[stay in the foreground and log to stderr]' \
	'(-d --debug)'{-d,--debug}'[log debug messages, too]' \
	'(--service-unmount)--service-mount[mount, and have the service manager keep that]' \
	'(--service-mount)--service-unmount[undo that]' \
	'*-o[mount options]:option:_relayfs_options' \
	'(-)'{-V,--version}'[show the version]' \
	'(-)'{-h,--help}'[show a summary]' \
	'*:directory:_files -/'
