# Completion of the command trainyard for bash.
_trainyard() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "submit list show logs stop clone attach tensorboard why explain quota usage nodes images login" -- "$word"))
    elif { [ "$command" = submit ] || [ "$command" = explain ]; } && [ "${word#-}" = "$word" ]; then
        compopt -o default
        COMPREPLY=()
    elif [ "$command" = tensorboard ] && [ "${word#-}" = "$word" ]; then
        COMPREPLY=($(compgen -d -- "$word"))
    elif [ "${word#-}" != "$word" ]; then
        COMPREPLY=($(compgen -W "--json --help --set --dry-run --follow --rank --root --all --stdio --month --account --csv" -- "$word"))
    else
        case $command in
            show|logs|stop|clone|attach|why) COMPREPLY=($(compgen -W "$(squeue --me --noheader --format=%i 2> /dev/null)" -- "$word"));;
        esac
    fi
}
complete -F _trainyard trainyard
