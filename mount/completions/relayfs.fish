# fish completion for relayfs(8); belongs into share/fish/vendor_completions.d/

function __relayfs_options
	set -l own store= size= user_size= user_files= control_mode= counters= crashed= crashed_size= watchdog= log= trusted trigger_run fsname=
	set -l fuse allow_other ro nosuid nodev noexec noatime nodiratime sync dirsync rw suid dev exec atime diratime async
	set -l before (commandline -ct | string match -rg '^(.*,)')
	or set before ''
	printf '%s\n' $before$own $before$fuse
end

for command in relayfs mount.relayfs
	complete -c $command -x -a '(__fish_complete_directories)'
	complete -c $command -s f -l foreground -d 'Stay in the foreground and log to stderr'
	complete -c $command -s d -l debug -d 'Log debug messages, too'
	complete -c $command -l service-mount -d 'Mount, and have the service manager keep that'
	complete -c $command -l service-unmount -d 'Undo that'
	complete -c $command -s o -x -a '(__relayfs_options)' -d 'Mount options'
	complete -c $command -s V -l version -d 'Show the version'
	complete -c $command -s h -l help -d 'Show a summary'
end
