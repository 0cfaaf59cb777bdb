# fish completion for relayctl(1); belongs into share/fish/vendor_completions.d/

function _relayctl
	set -l asked _RELAYCTL_COMPLETE=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t)
	for line in (env $asked relayctl 2>/dev/null)
		# A name may contain commas, too.
		set -l item (string split --max 1 , -- $line)
		switch $item[1]
			case dir
				__fish_complete_directories $item[2]
			case file
				__fish_complete_path $item[2]
			case plain
				printf '%s\n' $item[2]
		end
	end
end

complete --no-files --command relayctl --arguments '(_relayctl)'
