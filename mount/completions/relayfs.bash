# bash completion for relayfs(8); belongs into share/bash-completion/completions/, also under the name mount.relayfs

_relayfs() {
	local own='store= size= user_size= user_files= control_mode= counters= crashed= crashed_size= watchdog= log= trusted trigger_run fsname='
	local fuse='allow_other ro nosuid nodev noexec noatime nodiratime sync dirsync rw suid dev exec atime diratime async'
	# Not COMP_WORDS: Readline cuts words at "=", which here is within them. What it replaces is $2, the last piece.
	local typed=${COMP_LINE:0:COMP_POINT} before option
	local word=${typed##* }
	before=${typed% *}
	before=${before##* }
	if [[ $before == -o ]]; then
		option=${word##*,}
		if [[ $option == *=* ]]; then
			mapfile -t COMPREPLY < <(compgen -f -- "${option#*=}")
		else
			mapfile -t COMPREPLY < <(compgen -P "${2%"$option"}" -W "$own $fuse" -- "$option")
		fi
		compopt -o nospace
	elif [[ $word == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W '-f --foreground -d --debug --service-mount --service-unmount -o -V --version -h --help' -- "$word")
	else
		mapfile -t COMPREPLY < <(compgen -d -- "$2")
		compopt -o filenames
	fi
}

complete -F _relayfs relayfs mount.relayfs
