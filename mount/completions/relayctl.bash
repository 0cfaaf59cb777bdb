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

# Set `words` to those before the cursor. Readline cuts words at : and =, which may be in names, and are in KEY=VALUE.
_relayctl_words() {
	local rest=${COMP_LINE:0:COMP_POINT} piece blanks
	words=()
	for piece in "${COMP_WORDS[@]:0:COMP_CWORD + 1}"; do
		blanks=${rest%%[![:space:]]*}
		rest=${rest#"$blanks"}
		[[ $rest == "$piece"* ]] || piece=$rest
		rest=${rest#"$piece"}
		if [[ -z $blanks && -n ${words[*]} ]]; then
			words[-1]+=$piece
		else
			words+=("$piece")
		fi
	done
}

_relayctl_completion() {
	local IFS=$'\n' line quoted words
	_relayctl_words
	# Readline replaces $2, before which a quotation mark may stand that is still open, or a piece of the word.
	local before=${words[-1]%"$2"} quote=
	if [[ $before == [\'\"]* ]]; then
		quote=${before:0:1}
		before=${before:1}
	fi
	before=${before//\\/}
	COMPREPLY=()
	while read -r line; do
		case ${line%%,*} in
		dir) compopt -o dirnames ;;
		file) compopt -o default ;;
		plain)
			line=${line#*,}
			[[ $line == "$before"* ]] || continue
			_relayctl_quote "${line#"$before"}" "$quote"
			COMPREPLY+=("$quoted")
			;;
		esac
	done < <(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _RELAYCTL_COMPLETE=bash_complete "$1" 2>/dev/null)
}

complete -o nosort -F _relayctl_completion relayctl
