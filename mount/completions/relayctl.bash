# bash completion for relayctl(1); belongs into share/bash-completion/completions/

# _relayctl_quote NAME QUOTE: set `quoted` to what stands for a name behind an opening quotation mark, or without one.
# Other users choose names: what is typed for them must be no command.
_relayctl_quote() {
	case $2 in
	"'") quoted=${1//"'"/"'\\''"} ;;
	'"')
		quoted=${1//'\'/'\\'}
		quoted=${quoted//'"'/'\"'}
		quoted=${quoted//'$'/'\$'}
		quoted=${quoted//'`'/'\`'}
		quoted=${quoted//'!'/"\"'!'\""}
		;;
	*) printf -v quoted %q "$1" ;;
	esac
}

_relayctl_completion() {
	local IFS=$'\n' line quoted
	# Readline replaces $2, before which a quotation mark may stand that is still open.
	local before=${COMP_LINE:0:COMP_POINT}
	before=${before%"$2"}
	local quote=${before: -1}
	[[ $quote == [\'\"] ]] || quote=
	COMPREPLY=()
	while read -r line; do
		case ${line%%,*} in
		dir) compopt -o dirnames ;;
		file) compopt -o default ;;
		plain)
			_relayctl_quote "${line#*,}" "$quote"
			COMPREPLY+=("$quoted")
			;;
		esac
	done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _RELAYCTL_COMPLETE=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F _relayctl_completion relayctl
