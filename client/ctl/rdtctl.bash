# SPDX-License-Identifier: Apache-2.0
# bash completion for rdtctl. Commands and options are what `rdtctl help` and `rdtctl COMMAND --help` say; objects and transfers
# are asked of the daemon, briefly.

_rdtctl_ids() { # KIND KEY ARGUMENTS ...: values of KEY, only those that need no quoting
    local kind=$1 key=$2
    shift 2
    rdtctl "$kind" --json --timeout 300ms "$@" 2>/dev/null |
        sed -n 's/^ *"'"$key"'": "\{0,1\}\([A-Za-z0-9._~-]\{1,\}\)"\{0,1\},\{0,1\}$/\1/p'
}

_rdtctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' words='' i
    local -a socket=()
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --socket) socket=(--socket "${COMP_WORDS[++i]}") ;;
        --timeout | --daemon-uid) ((i++)) ;;
        -*) ;;
        help) ;;
        *) [[ -n $command ]] || command=${COMP_WORDS[i]} ;;
        esac
    done

    if [[ $prev == -o || $prev == --output || $prev == --socket ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
    fi
    if [[ $prev == --* && -n $command ]]; then # a word list behind an option: a|b|c
        words=$(rdtctl "$command" --help 2>/dev/null | sed -n "s/^ .* $prev \([a-z]*|[a-z|]*\) .*/\1/p; /^ .* $prev WORD /,/^ \{0,6\}-/s/^ \{38,\}\([a-z|]*\)$/\1/p" | tr -d '\n')
        [[ $prev == --name || $prev == --publish ]] &&
            words=$(_rdtctl_ids names name --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}")
        [[ $prev == --transport ]] && words=$(_rdtctl_ids backends name "${socket[@]}")
        if [[ -n $words ]]; then
            mapfile -t COMPREPLY < <(compgen -W "${words//|/ }" -- "$cur")
            return
        fi
    fi
    if [[ -z $command ]]; then
        words=$(rdtctl help 2>/dev/null |
            sed -n -e '/^commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' -e '/^options/,/^$/s/^  .*\(--[a-z-]*\) .*/\1/p')
    elif [[ $cur == -* ]]; then
        words=$(rdtctl "$command" --help 2>/dev/null | sed -n '/^options/,$s/^  \(-[a-zA-Z],\|   \) \(--[a-z-]*\) .*/\2/p')
    else
        case $command in
        stat | fetch | wait | free) words=$(_rdtctl_ids objects id --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}") ;;
        log-level) words='error warn info debug trace' ;;
        watch) words='objects regions clients peers backends transfers names owners groups' ;;
        backend)
            case $prev in
            load) mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
            unload) words=$(_rdtctl_ids backends name "${socket[@]}") ;;
            *) words='load list unload' ;;
            esac
            ;;
        broadcast) [[ $prev == broadcast ]] && words=$(_rdtctl_ids objects id --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}") || words=$(_rdtctl_ids groups name "${socket[@]}") ;;
        groups) [[ $prev == groups ]] && words='create destroy' || words=$(_rdtctl_ids groups name "${socket[@]}") ;;
        unpublish) words=$(_rdtctl_ids names name --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}") ;;
        publish)
            if [[ $prev == publish ]]; then
                words=$(_rdtctl_ids names name --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}")
            else
                words=$(_rdtctl_ids objects id --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}")
            fi
            ;;
        explain | trace)
            words=$(_rdtctl_ids objects id --limit 200 ${cur:+--prefix "$cur"} "${socket[@]}"
                    _rdtctl_ids transfers transfer --limit 200 "${socket[@]}")
            ;;
        put)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$cur"; compgen -f -X '!*.safetensors' -- "$cur")
            return
            ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _rdtctl rdtctl
