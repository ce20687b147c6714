#!/bin/sh
# shoal-agent start|stop|restart|status|logs|run|uninstall
#
# Controls the agent that install.sh put on this device. `run` is the agent itself, in the
# foreground: what a service file starts. Everything lies below the folder of this script:
#   .shoal-agent  settings, written by install.sh     agent.args  the agent's arguments, one a line
#   current       the environment in use              state       identity, KV, log: the account's own
set -eu

prefix=$(dirname "$(readlink -f "$0")")
state="$prefix/state"
pid_file="$state/agent.pid"
log_file="$state/agent.log"
STOP_LIMIT_S=30
MAX_LOG_BYTES=10000000
upgrades="$state/upgrades"
RESTART=40 # the agent asks to be started again: docs/exit-codes.md

say() { printf '%s\n' "shoal-agent: $*"; }
die() { printf '%s\n' "shoal-agent: $*" >&2; exit 1; }
setting() { sed -n "s/^$1=//p" "$prefix/.shoal-agent" | head -n 1; }

[ -f "$prefix/.shoal-agent" ] || die "$prefix holds no installed agent"
service=$(setting service)
unit=$(setting unit)
account=$(setting user)

# The pid of our agent, and only of ours: a recycled pid has another command line.
agent_pid() {
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    case $pid in '' | *[!0-9]*) return 1 ;; esac
    tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -Fxq "$state" || return 1
    echo "$pid"
}

supervisor_pid() {
    pid_of_run=$(cat "$state/supervisor.pid" 2>/dev/null) || return 1
    case $pid_of_run in '' | *[!0-9]*) return 1 ;; esac
    tr '\0' '\n' 2>/dev/null <"/proc/$pid_of_run/cmdline" | grep -Fxq "$prefix/shoal-agent" || return 1
    echo "$pid_of_run"
}

# ---- upgrades: versions that the agent installed by the hub's order lie in the account's own
# folder; this script, which no upgrade changes, decides which one runs.

# The environment in use: an upgrade's, else the one that install.sh made.
environment() {
    if [ -x "$upgrades/current/bin/python" ]; then echo "$upgrades/current"; else echo "$prefix/current"; fi
}

# The release on trial did not do: the one before runs again. $1: why
roll_back() {
    release=$(sed -n 1p "$upgrades/trial")
    before=$(cat "$upgrades/previous" 2>/dev/null || true)
    if [ -n "$before" ]; then
        ln -s "$before" "$upgrades/current.new" && mv -T "$upgrades/current.new" "$upgrades/current"
    else
        rm -f "$upgrades/current"
    fi
    printf '%s\n%s\n' "$release" "$1" >"$upgrades/failed"
    rm -f "$upgrades/trial" "$upgrades/starts"
    say "upgrade to $release given up: $1; back to ${before:-the installed version}"
}

# Ends a trial that the hub has not confirmed in time. $1: the agent's pid, $2: limit in s
watch_trial() {
    waited=0
    while [ -f "$upgrades/trial" ] && kill -0 "$1" 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        if [ "$waited" -ge "$2" ]; then
            echo "not confirmed within $2 s" >"$upgrades/late"
            kill -TERM "$1" 2>/dev/null
            sleep 10
            kill -KILL "$1" 2>/dev/null
            return
        fi
    done
}

# `run logged` writes to the log file; opened here, as the agent's own account, since that
# account owns the folder and root must not follow what lies in it.
run() {
    cd "$state"
    umask 077
    if [ "${1:-}" = logged ]; then
        size=$(stat -c %s "$log_file" 2>/dev/null || echo 0)
        [ "$size" -lt "$MAX_LOG_BYTES" ] || mv "$log_file" "$log_file.1"
        exec >>"$log_file" 2>&1
    fi
    # Modules come from the environment alone, never from the folder we are in.
    PYTHONSAFEPATH=1
    SHOAL_AGENT_PREFIX=$prefix
    export PYTHONSAFEPATH SHOAL_AGENT_PREFIX
    ending=no child=''
    trap 'ending=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM INT
    echo $$ >"$state/supervisor.pid"
    while :; do
        start_child
        code=0
        while :; do # a signal ends the wait, not the agent
            if wait "$child"; then code=0; else code=$?; fi
            kill -0 "$child" 2>/dev/null || break
        done
        child=''
        if [ "$ending" = no ] && [ -f "$upgrades/trial" ]; then
            why="ended with code $code"
            [ ! -f "$upgrades/late" ] || why=$(cat "$upgrades/late")
            [ ! -f "$upgrades/refused" ] || why=$(cat "$upgrades/refused")
            # 40 with a fresh trial is the version before, which has switched and wants out.
            if [ "$code" = "$RESTART" ] && [ ! -f "$upgrades/starts" ]; then continue; fi
            rm -f "$upgrades/late" "$upgrades/refused"
            roll_back "$why"
            continue
        fi
        [ "$ending" = no ] && [ "$code" = "$RESTART" ] && continue
        # For install.sh, which no service manager tells it in the same words.
        echo "$code" >exit-code
        exit "$code"
    done
}

start_child() {
    set --
    while IFS= read -r argument; do set -- "$@" "$argument"; done <"$prefix/agent.args"
    unset SHOAL_TOKEN
    rm -f exit-code connected
    if [ -f identity.json ]; then
        rm -f token
    elif [ -f token ]; then
        SHOAL_TOKEN=$(cat token)
        export SHOAL_TOKEN
    fi
    limit=''
    if [ -f "$upgrades/trial" ]; then
        limit=$(sed -n 2p "$upgrades/trial")
        echo >>"$upgrades/starts"
        # A version that takes the whole machine down gets no third try.
        if [ "$(wc -l <"$upgrades/starts")" -gt 2 ]; then
            roll_back "the machine or this service went down twice"
            limit=''
        fi
    fi
    "$(environment)/bin/python" -m agent.app --home "$state" "$@" &
    child=$!
    echo "$child" >"$pid_file"
    if [ -n "$limit" ]; then watch_trial "$child" "$limit" & fi
}

start() {
    case $service in
    system) systemctl start "$unit" ;;
    user) systemctl --user start "$unit" ;;
    *)
        if pid=$(agent_pid); then
            say "runs already, process $pid"
            return
        fi
        set -- "$prefix/shoal-agent" run logged
        if [ "$(id -un)" != "$account" ]; then
            [ "$(id -u)" = 0 ] || die "only root or $account can start it"
            set -- setpriv --reuid="$account" --regid="$(id -g "$account")" --clear-groups \
                --no-new-privs env "HOME=$state" "USER=$account" "$@"
        fi
        rm -f "$pid_file"
        # Its own session: it outlives the terminal it was started from.
        setsid "$@" </dev/null >/dev/null 2>&1 &
        say "started; its log is $log_file"
        ;;
    esac
}

stop() {
    case $service in
    system) systemctl stop "$unit" ;;
    user) systemctl --user stop "$unit" ;;
    *)
        pid=$(agent_pid) || {
            say "does not run"
            return
        }
        # The supervisor first: it passes the signal on, and starts nothing any more.
        kill -TERM "$(supervisor_pid)" 2>/dev/null || kill -TERM "$pid"
        waited=0
        while agent_pid >/dev/null; do
            if [ "$waited" -ge $((STOP_LIMIT_S * 5)) ]; then
                say "did not end within $STOP_LIMIT_S s, killed"
                kill -KILL "$pid"
                break
            fi
            sleep 0.2
            waited=$((waited + 1))
        done
        rm -f "$pid_file"
        say "stopped"
        ;;
    esac
}

status() {
    case $service in
    system) systemctl --no-pager status "$unit" ;;
    user) systemctl --user --no-pager status "$unit" ;;
    *)
        if pid=$(agent_pid); then say "runs, process $pid"; else
            say "does not run"
            return 3
        fi
        ;;
    esac
}

logs() {
    case $service in
    system) journalctl --no-pager -n 100 -u "$unit" ;;
    user) journalctl --user --no-pager -n 100 -u "$unit" ;;
    *) tail -n 100 "$log_file" ;;
    esac
}

# Leaves nothing of ours. The fleet still knows the device: that is said, not done, for only
# an administrator may take a device out.
uninstall() {
    name=$(setting name)
    joined=no
    [ ! -f "$state/identity.json" ] || joined=yes
    stop || say "could not be stopped in good order"
    unit_file=$(setting unit_file)
    if [ -n "$unit_file" ]; then
        case $service in
        system) systemctl disable "$unit" || true ;;
        user) systemctl --user disable "$unit" || true ;;
        esac
        rm -f "$unit_file"
        case $service in
        system) systemctl daemon-reload ;;
        user) systemctl --user daemon-reload ;;
        esac
    fi
    created_user=$(setting created_user)
    cd /
    rm -rf "$prefix/versions" "$prefix/current" "$prefix/cache" "$prefix/models" \
        "$prefix/state" "$prefix/agent.args" "$prefix/shoal-agent" "$prefix/.shoal-agent"
    rmdir "$prefix" 2>/dev/null || say "$prefix holds files of others and was left"
    if [ "$created_user" = yes ]; then
        userdel "$account" 2>/dev/null || deluser "$account" ||
            say "the account $account could not be removed"
    fi
    say "removed from this device"
    if [ "$joined" = yes ]; then
        say "to take it out of the fleet, on the orchestrator: shoal devices remove $name"
    else
        say "it had not joined a fleet: there is nothing to remove there"
    fi
}

case ${1:-} in
run) run "${2:-}" ;;
start | stop | status | logs | uninstall) "$1" ;;
restart)
    stop
    start
    ;;
*)
    sed -n '2s/^# //p' "$0"
    exit 2
    ;;
esac
