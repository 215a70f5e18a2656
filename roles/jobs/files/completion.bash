# Completion of the command trainyard for bash. The command itself knows its subcommands, options, jobs and images.
_trainyard() {
    local word=${COMP_WORDS[COMP_CWORD]} found
    # What comes after : and = is replaced alone.
    case $word in :|=) word= ;; esac
    mapfile -t found < <(trainyard complete "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2> /dev/null)
    COMPREPLY=()
    case ${found[0]} in
        -files) compopt -o default 2> /dev/null ;;
        -folders) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
        '') ;;
        *)
            COMPREPLY=("${found[@]}")
            case ${found[0]} in *=) compopt -o nospace 2> /dev/null ;; esac ;;
    esac
}
complete -F _trainyard trainyard
