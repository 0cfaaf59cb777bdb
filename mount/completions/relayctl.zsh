#compdef relayctl
# zsh completion for relayctl(1); belongs into share/zsh/site-functions/_relayctl

local -a response names described
local type name help

response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) _RELAYCTL_COMPLETE=zsh_complete relayctl 2>/dev/null)}")
for type name help in "${response[@]}"; do
	case $type in
	dir) _path_files -/ ;;
	file) _path_files -f ;;
	plain) # click has escaped colons before a help
		if [[ $help == _ ]]; then
			names+=("$name")
		else
			described+=("$name:$help")
		fi
		;;
	esac
done
(( $#described )) && _describe -V unsorted described -U
(( $#names )) && compadd -U -V unsorted -a names
