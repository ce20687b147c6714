#!/bin/sh
# Make this machine a device of a shoal fleet.
#
#   curl -fsSL http://GATEWAY/shoal/v1/install.sh | sh -s -- --token TOKEN
#
# Nothing is changed before every check has passed. A second run upgrades; it keeps the device's
# identity and whatever option it is not given. Options, each also as an environment variable:
#   --token TOKEN    SHOAL_TOKEN    join token; needed once          (shoal token create)
#   --url URL        SHOAL_URL      the fleet's gateway              [who served this script]
#   --name NAME      SHOAL_NAME     the device's name in the fleet   [host name]
#   --model FILE|NAME  SHOAL_MODEL  what it serves; repeatable       [smollm2-135m-instruct]
#   --companion FILE|URL#MODEL  SHOAL_COMPANION  a server on it that serves a model; repeatable
#                                   (docs/companion.md); then only --model that is given is served too
#                                   (`none` puts --model and --companion back to the default,
#                                   `auto` --class, --slots and --context)
#   --class CLASS    SHOAL_CLASS    device class                     [detected]
#   --slots N  --context N          sequences at once, tokens each   [fitted to the memory]
#   --kv-type f16|q8_0|auto         elements of the KV cache         [auto: as calibrated, else f16]
#   --local-api [ADDRESS:]PORT|off  its own API for clients on it    [127.0.0.1:8431]
#   --calibrate auto|never          measure in an idle minute what suits it   [auto]
#   --prefix DIR     SHOAL_PREFIX   where it is installed  [~/.local/share/shoal-agent; root: /opt/shoal-agent]
#   --user NAME      SHOAL_USER     account that runs it             [yours; root: shoal-agent, made]
#   --version V      SHOAL_VERSION  refuse any other version         [what is served]
#   --service auto|none  SHOAL_SERVICE  systemd where it runs, or a plain process   [auto]
#   --no-start       SHOAL_START=0  install only
#   --bundle FILE    SHOAL_BUNDLE   take everything from a bundle    (shoal bundle create)
#   --bundle-sha256 HEX             needed when this script is not the bundle's own
#   --dry-run                       check, say what would be done, change nothing
#   --uninstall                     remove everything of it from this machine
# SHOAL_PYTHON names the Python to use, SHOAL_ENGINE_WHEELS a folder of built engines.
set -eu

# Filled in by who hands this script out. The list of files is checked against its hash here,
# and every file against the list: who checks this script's hash has checked them all.
GATEWAY_URL='@GATEWAY_URL@'
INDEX_SHA256='@INDEX_SHA256@'
THIS_VERSION='@VERSION@'
WHEEL='@WHEEL@'

DEFAULT_MODEL=smollm2-135m-instruct
JOIN_LIMIT_S=120

say() { printf '%s\n' "shoal: $*"; }
die() {
    printf '%s\n' "shoal: $1" >&2
    [ -z "${2:-}" ] || printf '%s\n' "remedy: $2" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }
step() { # the last step's seconds show where the time goes
    now=$(date +%s)
    [ -z "$step_name" ] || say "  $step_name: $((now - step_began)) s"
    step_name=$1
    step_began=$now
}

# ---------------------------------------------------------------- settings

read_settings() {
    token=${SHOAL_TOKEN:-}
    url=${SHOAL_URL:-$GATEWAY_URL}
    name=${SHOAL_NAME:-}
    models=${SHOAL_MODEL:-}
    companions=${SHOAL_COMPANION:-}
    class=${SHOAL_CLASS:-} slots='' context='' kv_type='' local_api='' calibrate=''
    prefix=${SHOAL_PREFIX:-}
    account=${SHOAL_USER:-}
    version=${SHOAL_VERSION:-}
    service=${SHOAL_SERVICE:-}
    start=${SHOAL_START:-1}
    bundle=${SHOAL_BUNDLE:-} bundle_sha256=''
    dry_run=no uninstall=no
    step_name='' step_began=0 created_user=no
    given_models='' given_companions=''
    # Our children get what they need by name; the token is nobody else's business.
    unset SHOAL_TOKEN
    while [ $# -gt 0 ]; do
        option=$1
        case $option in
        --no-start) start=0 ;;
        --dry-run) dry_run=yes ;;
        --uninstall) uninstall=yes ;;
        --token | --url | --name | --model | --companion | --class | --slots | --context | \
            --kv-type | --local-api | --calibrate | --prefix | --user | --version | --service | --bundle | --bundle-sha256)
            [ $# -gt 1 ] || die "$option needs a value"
            shift
            [ -n "$1" ] || die "$option needs a value" "leave it out to keep what was given before"
            case $option in
            --token) token=$1 ;;
            --url) url=$1 ;;
            --name) name=$1 ;;
            --model) given_models="$given_models$1
" ;;
            --companion) given_companions="$given_companions$1
" ;;
            --class) class=$1 ;;
            --slots) slots=$1 ;;
            --context) context=$1 ;;
            --kv-type) kv_type=$1 ;;
            --local-api) local_api=$1 ;;
            --calibrate) calibrate=$1 ;;
            --prefix) prefix=$1 ;;
            --user) account=$1 ;;
            --version) version=$1 ;;
            --service) service=$1 ;;
            --bundle) bundle=$1 ;;
            --bundle-sha256) bundle_sha256=$1 ;;
            esac
            ;;
        *) die "unknown option $option" "the options stand at the head of this script" ;;
        esac
        shift
    done
    url=${url%/}
    if [ "$(id -u)" = 0 ]; then
        prefix=${prefix:-/opt/shoal-agent}
    else
        prefix=${prefix:-${XDG_DATA_HOME:-$HOME/.local/share}/shoal-agent}
    fi
    case $prefix in
    /) die "--prefix / is not possible" ;;
    /*) prefix=${prefix%/} ;;
    *) prefix="$PWD/${prefix%/}" ;;
    esac
    account=${account:-$(kept user)}
    if [ "$(id -u)" = 0 ]; then
        account=${account:-shoal-agent}
    else
        account=${account:-$(id -un)}
        [ "$account" = "$(id -un)" ] || die "only root can install for the account $account"
    fi
    # What was found to run systemd is looked for again; what was to do without it, does.
    [ -n "$service" ] || [ "$(kept service_asked)" != none ] || service=none
    service=${service:-auto}
    service_asked=$service
    case $service in auto | none) ;; *) die "--service is auto or none" ;; esac
    case $kv_type in '' | auto | f16 | q8_0) ;; *) die "--kv-type is f16, q8_0 or auto" ;; esac
    case $calibrate in '' | auto | never) ;; *) die "--calibrate is auto or never" ;; esac
}

# What an earlier run settled, so that a second one need not be told again.
kept() { sed -n "s/^$1=//p" "$prefix/.shoal-agent" 2>/dev/null | head -n 1; }
kept_argument() {
    awk -v option="$1" 'wanted { print; wanted = 0 } $0 == option { wanted = 1 }' \
        "$prefix/agent.args" 2>/dev/null || true
}

settle_names() {
    if [ -f "$prefix/state/identity.json" ]; then
        member=yes
        known=$(kept name)
        [ -z "$name" ] || [ "$name" = "$known" ] || die "this device is a member as $known" \
            "keep that name, or --uninstall first and join again with a new token"
        name=$known
    else
        member=no
        name=${name:-$(kept name)}
        name=${name:-$(uname -n | cut -d. -f1)}
        [ -n "$token" ] || die "a join token is needed" \
            "on the orchestrator: shoal token create; then pass --token TOKEN"
    fi
    models=${given_models:-${models:-$(kept_argument --model)}}
    companions=${given_companions:-${companions:-$(kept_argument --companion)}}
    [ "$(echo "$models" | head -n 1)" != none ] || models=''
    [ "$(echo "$companions" | head -n 1)" != none ] || companions=''
    # Who serves by another server may have no use for ours.
    [ -n "$models$companions" ] || models=$DEFAULT_MODEL
    class=${class:-$(kept_argument --class)}
    slots=${slots:-$(kept_argument --slots)}
    local_api=${local_api:-$(kept_argument --local-api)}
    calibrate=${calibrate:-$(kept_argument --calibrate)}
    context=${context:-$(kept_argument --context)}
    kv_type=${kv_type:-$(kept_argument --kv-type)}
    # How a kept option is put back to its default.
    [ "$class" != auto ] || class=''
    [ "$slots" != auto ] || slots=''
    [ "$context" != auto ] || context=''
    printf '%s\n' "$companions" | while IFS= read -r companion; do
        case $companion in
        '' | http://*'#'* | https://*'#'*) ;;
        *) [ -f "$companion" ] || die "--companion $companion is neither a file nor URL#MODEL" ;;
        esac
    done || exit 1
    [ -n "$url" ] || die "the fleet's gateway is not known" "pass --url http://GATEWAY:8421"
    case $url in *[!A-Za-z0-9._:/\[\]-]*) die "--url $url is not a gateway's URL" ;; esac
    [ -z "$version" ] || [ "$version" = "$THIS_VERSION" ] || die \
        "version $version was asked for, this is $THIS_VERSION" \
        "a fleet serves its own version; get the script from a fleet of version $version"
}

# ---------------------------------------------------------------- checks that need no download

check_machine() {
    [ "$(uname -s)" = Linux ] || die "devices run Linux, this is $(uname -s)"
    case $(uname -m) in
    x86_64 | aarch64 | arm64) ;;
    *) die "there is no engine for $(uname -m)" "x86-64 and 64-bit ARM are served" ;;
    esac
    for tool in sed awk cut tar mktemp sha256sum readlink setsid; do
        has "$tool" || die "the program $tool is missing" "install it with this system's packages"
    done
    [ -n "$bundle" ] || has curl || has wget || die "neither curl nor wget is installed" \
        "install curl, or use a bundle (--bundle)"
    [ -z "$bundle" ] || [ -f "$bundle" ] || die "there is no file $bundle"
    find_python
    if [ -e "$prefix" ] && [ ! -f "$prefix/.shoal-agent" ] && [ -n "$(ls -A "$prefix")" ]; then
        die "$prefix exists and is not ours" "choose another --prefix"
    fi
    parent=$prefix
    while [ ! -e "$parent" ]; do parent=$(dirname "$parent"); done
    [ -w "$parent" ] || die "$parent cannot be written by $(id -un)" \
        "choose another --prefix, or run as root"
}

find_python() {
    for python in ${SHOAL_PYTHON:-python3.11 python3.12 python3.13 python3}; do
        # No environment of somebody else's: what it was made from.
        if found=$("$python" -c 'import sys, venv, ensurepip
if sys.version_info < (3, 11): sys.exit(1)
print(sys._base_executable)' 2>/dev/null); then
            python=$found
            return
        fi
    done
    # shellcheck disable=SC1091 # the system's own file
    distribution=$(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") || distribution=''
    case " $distribution " in
    *debian* | *ubuntu*) remedy="apt install python3 python3-venv (Debian 12, Ubuntu 24.04 or newer)" ;;
    *fedora* | *rhel* | *centos*) remedy="dnf install python3.11" ;;
    *alpine*) remedy="apk add python3 py3-pip" ;;
    *arch*) remedy="pacman -S python" ;;
    *suse*) remedy="zypper install python311" ;;
    *) remedy="install Python 3.11 or newer with its modules venv and ensurepip" ;;
    esac
    die "Python 3.11 or newer with venv is needed and not found" "$remedy; or name one in SHOAL_PYTHON"
}

# ---------------------------------------------------------------- files, each with its hash

hash_of() { sha256sum <"$1" | cut -d' ' -f1; }

download() { # URL FILE
    if has curl; then
        curl -fsSL --retry 3 --connect-timeout 10 -o "$2" "$1"
    else
        wget -q -T 30 -O "$2" "$1"
    fi || die "$1 cannot be fetched" "check the URL and that the fleet runs"
}

open_source() {
    if [ -n "$bundle" ]; then
        if [ -n "$bundle_sha256" ]; then
            [ "$(hash_of "$bundle")" = "$bundle_sha256" ] || die "$bundle has another SHA-256"
        fi
        tar -xf "$bundle" -C "$work" SHA256SUMS PLATFORM || die "$bundle is not a shoal bundle"
    else
        download "$url/shoal/v1/agent/SHA256SUMS" "$work/SHA256SUMS"
    fi
    if [ -z "$bundle" ] || [ -z "$bundle_sha256" ]; then
        [ "$(hash_of "$work/SHA256SUMS")" = "$INDEX_SHA256" ] || if [ -n "$bundle" ]; then
            die "this script was not made for $bundle" "use the bundle's own script \
(tar -xf $bundle install.sh), or pass --bundle-sha256 as shoal bundle create printed it"
        else
            die "the fleet's list of files does not fit this script" \
                "fetch the script again; if that does not help someone may be in between"
        fi
    fi
    if [ -n "$bundle" ]; then
        here=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$(uname -m)
        made=$(cat "$work/PLATFORM")
        [ "$here" = "$made" ] || die "the bundle is for Python-machine $made, this is $here" \
            "make one on a like machine, or name a fitting Python in SHOAL_PYTHON"
        # Only what the list names leaves the bundle, and not one of it is used unchecked.
        cut -d' ' -f3- "$work/SHA256SUMS" >"$work/names"
        tar -xf "$bundle" -C "$work" -T "$work/names" || die "the bundle is damaged"
        (cd "$work" && sha256sum -c SHA256SUMS >/dev/null) || die "the bundle is damaged"
    fi
}

listed() { # NAME: its hash in the list; empty when it is not there
    awk -v wanted="$1" '$2 == wanted { print $1 }' "$work/SHA256SUMS"
}

fetch() { # NAME, into $work
    wanted=$(listed "$1")
    [ -n "$wanted" ] || die "the list of files lacks $1"
    mkdir -p "$work/$(dirname "$1")"
    [ -n "$bundle" ] || download "$url/shoal/v1/agent/$1" "$work/$1"
    [ "$(hash_of "$work/$1")" = "$wanted" ] || die "$1 has a wrong SHA-256; nothing was changed"
}

# ---------------------------------------------------------------- checks with the wheel at hand

from_wheel() { # FOLDER-IN-WHEEL MODULE ARGUMENTS...: run straight from the wheel, nothing installed
    folder=$1
    shift
    # Never from the folder that we are in.
    PYTHONPATH="$work/$WHEEL$folder" "$python" -B -P -m "$@"
}

plan_engine() {
    caches=${SHOAL_ENGINE_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/shoal/wheels}
    data="/${WHEEL%-py3-none-any.whl}.data/data/share/shoal/deploy"
    mkdir -p "$work/deploy" "$work/engine"
    "$python" -B -c 'import sys, zipfile
wheel, folder, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as packed:
    for name in packed.namelist():
        if name.startswith(folder + "/"):
            packed.extract(name, target)' "$work/$WHEEL" "${data#/}" "$work/deploy"
    builder="$work/deploy$data/build_engine.py"
    plan=$(XDG_CACHE_HOME="$prefix/cache" "$python" -B "$builder" --plan \
        --wheels "$caches" --wheels "$work/engine")
    engine_key=$(echo "$plan" | sed -n '1s/ .*//p')
    served=$(sed -n "s/^[0-9a-f]*  \(engine\/$engine_key\/.*\)/\1/p" "$work/SHA256SUMS" | head -n 1)
    case $(echo "$plan" | head -n 1) in
    *cached) engine=cached ;;
    *)
        engine=compile
        [ -z "$served" ] || engine=served
        # Who serves by another server only needs none of ours, least of all one that is compiled.
        [ -n "$models" ] || [ "$engine" = served ] || engine=none
        [ -z "$bundle" ] || [ "$engine" != compile ] || die \
            "the bundle's engine is not for this CPU (wanted: $engine_key)" \
            "make the bundle on a machine with the same CPU, Python and C library"
        ;;
    esac
}

check_options() {
    from_wheel "" agent.upgrade.install_check --name="$name" --class="$class" --slots="$slots" \
        --context="$context" --local-api="$local_api" --companions="$companions" \
        --models="$models" --served="$(listed_models)" --fetched="$prefix/state/models" ||
        die "nothing was changed on this machine"
}

check_fleet() {
    set -- --url "$url" --prefix "$prefix"
    [ "$engine" != compile ] || set -- "$@" --compiles
    [ "$account" = "$(id -un)" ] || set -- "$@" --other-user
    printf '%s' "$token" | from_wheel "" shoal.onboarding.preflight "$@" ||
        die "nothing was changed on this machine"
}

# The models that the fleet or the bundle has: their paths in the list.
listed_models() { sed -n 's/^[0-9a-f]*  \(models\/.*\)/\1/p' "$work/SHA256SUMS"; }

# One of them by its name.
served_model() {
    listed_models | while IFS= read -r file; do
        [ "$(from_wheel "" shoal.model_names "$file")" != "$1" ] || echo "$file"
    done | head -n 1
}

choose_service() {
    if [ "$service" = auto ] && has systemctl; then
        if [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; then
            service=system
        elif [ "$(id -u)" != 0 ] && systemctl --user show-environment >/dev/null 2>&1; then
            service=user
        fi
    fi
    [ "$service" != auto ] || service=none
    unit=shoal-agent
    case $prefix in
    /opt/shoal-agent | "${XDG_DATA_HOME:-$HOME/.local/share}/shoal-agent") ;;
    *) unit=shoal-agent-$(printf '%s' "$prefix" | sha256sum | cut -c1-8) ;;
    esac
    case $service in
    system) unit_file=/etc/systemd/system/$unit.service ;;
    user) unit_file=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/$unit.service ;;
    none) unit_file='' ;;
    esac
    if [ "$service" = none ] && [ "$account" != "$(id -un)" ]; then
        has setpriv || die "without systemd, setpriv is needed to run as $account" \
            "install util-linux, or pass --user $(id -un)"
    fi
}

say_plan() {
    release="$THIS_VERSION-$(hash_of "$work/SHA256SUMS" | cut -c1-12)"
    say "version $THIS_VERSION, device $name, fleet $url"
    say "into $prefix, run by $account, $(
        case $service in
        none) echo "as a plain process (no systemd here)" ;;
        *) echo "as the systemd $service service $unit" ;;
        esac
    )"
    case $engine in
    compile) say "the engine will be compiled for this CPU, which takes some minutes" ;;
    none) say "no engine is built for this CPU yet: only companions will serve, until --model is given" ;;
    *) say "the engine for this CPU is $engine: nothing is compiled" ;;
    esac
    [ "$member" = no ] || say "this device has joined before: its identity is kept$(
        [ -z "$token" ] || echo ", the token is used only if the fleet refuses that"
    )"
}

# ---------------------------------------------------------------- changes

make_places() {
    if [ "$account" != "$(id -un)" ] && ! id -u "$account" >/dev/null 2>&1; then
        if has useradd; then
            useradd --system --user-group --no-create-home --home-dir "$prefix/state" \
                --shell /usr/sbin/nologin "$account"
        else
            addgroup -S "$account" && adduser -S -D -H -G "$account" -h "$prefix/state" "$account"
        fi || die "the account $account could not be made"
        created_user=yes
    fi
    [ "$(kept created_user)" != yes ] || created_user=yes
    mkdir -p "$prefix/versions" "$prefix/cache" "$prefix/models" "$prefix/state"
    # First of all, so that whatever happens next can be uninstalled.
    {
        echo "name=$name"
        echo "url=$url"
        echo "user=$account"
        echo "created_user=$created_user"
        echo "service=$service"
        echo "service_asked=$service_asked"
        echo "unit=$unit"
        echo "unit_file=$unit_file"
    } >"$prefix/.shoal-agent.new"
    mv "$prefix/.shoal-agent.new" "$prefix/.shoal-agent"
    chmod 755 "$prefix" "$prefix/versions" "$prefix/cache" "$prefix/models"
    chmod 700 "$prefix/state"
    [ "$account" = "$(id -un)" ] || chown -h "$account:" "$prefix/state"
}

install_environment() {
    target="$prefix/versions/$release"
    [ ! -f "$target/complete" ] || return 0
    rm -rf "$target"
    step "environment"
    "$python" -m venv "$target"
    step "packages"
    # Compiled is below only what the agent loads: compiling all takes as long as the rest.
    set -- --disable-pip-version-check install --quiet --no-compile --only-binary :all:
    if [ -n "$bundle" ]; then
        set -- --isolated "$@" --no-index --find-links "$work/wheels"
    elif [ ! -d "$("$target/bin/python" -m pip cache dir 2>/dev/null)" ]; then
        # Who keeps no cache of packages is left without one.
        set -- "$@" --no-cache-dir
    fi
    "$target/bin/python" -m pip "$@" --constraint "$work/constraints.txt" "$work/$WHEEL" ||
        die "the packages could not be installed" "see pip's message above, then run this again"
}

install_models() {
    step "models"
    : >"$work/model_arguments"
    printf '%s\n' "$models" | while IFS= read -r model; do
        [ -n "$model" ] || continue
        if [ -f "$model" ]; then
            model=$(readlink -f "$model")
        else
            file=$(served_model "$model")
            if [ -n "$file" ]; then
                place="$prefix/models/$(basename "$file")"
                if [ ! -f "$place" ] || [ "$(hash_of "$place")" != "$(listed "$file")" ]; then
                    fetch "$file"
                    mv "$work/$file" "$place.new"
                    mv "$place.new" "$place"
                fi
                model=$place
            fi
        fi
        printf '%s\n' "$model" >>"$work/model_arguments"
    done
}

settle_companions() {
    printf '%s\n' "$companions" | while IFS= read -r companion; do
        [ ! -f "$companion" ] || companion=$(readlink -f "$companion")
        [ -z "$companion" ] || printf '%s\n' "$companion"
    done >"$work/companion_arguments"
}

# What the engine is proven with: a model of the fleet's, which is whole by its hash; without
# one what this device serves. Empty: there is none.
proof_model() {
    file=$(served_model "$DEFAULT_MODEL")
    [ -n "$file" ] || file=$(listed_models | head -n 1)
    if [ -z "$file" ]; then
        while IFS= read -r model; do
            [ ! -f "$model" ] || { echo "$model" && break; }
        done <"$work/model_arguments"
    elif [ -f "$prefix/models/$(basename "$file")" ] &&
        [ "$(hash_of "$prefix/models/$(basename "$file")")" = "$(listed "$file")" ]; then
        echo "$prefix/models/$(basename "$file")"
    else
        fetch "$file" && echo "$work/$file"
    fi
}

install_engine() {
    # A device that served by companions only may have none yet.
    if [ -f "$target/complete" ]; then
        [ -f "$target/without_engine" ] && [ "$engine" != none ] && [ -n "$models" ] || return 0
    fi
    step "engine"
    proof=$(proof_model)
    if [ "$engine" = none ] || { [ -z "$proof" ] && [ -z "$models" ]; }; then
        (cd / && "$target/bin/python" -c 'import agent.app, shoal.cli.app') ||
            die "the agent cannot be loaded" "see the message above; please report it"
        touch "$target/without_engine" "$target/complete"
        return 0
    fi
    [ "$engine" != served ] || fetch "$served"
    set -- --wheels "$caches" --wheels "$work/engine"
    [ -z "$proof" ] || set -- "$@" --model "$proof"
    # Built ones are kept below the prefix, to be removed with it.
    XDG_CACHE_HOME="$prefix/cache" PIP_DISABLE_PIP_VERSION_CHECK=1 "$target/bin/python" \
        "$target/share/shoal/deploy/build_engine.py" "$@" || die \
        "the engine could not be installed" "the message above says what was tried"
    if [ "$engine" = served ]; then
        mkdir -p "$prefix/cache/shoal/wheels/$engine_key"
        cp "$work/$served" "$prefix/cache/shoal/wheels/$engine_key/"
    fi
    (cd / && "$target/bin/python" -c 'import agent.app, agent.llama.serve, shoal.cli.app') ||
        die "the agent cannot be loaded" "see the message above; please report it"
    rm -f "$target/without_engine"
    touch "$target/complete"
}

write_settings() {
    {
        printf '%s\n' --join "$url" --name "$name"
        while IFS= read -r model; do printf '%s\n' --model "$model"; done <"$work/model_arguments"
        while IFS= read -r each; do printf '%s\n' --companion "$each"; done <"$work/companion_arguments"
        [ -z "$class" ] || printf '%s\n' --class "$class"
        [ -z "$slots" ] || printf '%s\n' --slots "$slots"
        [ -z "$context" ] || printf '%s\n' --context "$context"
        [ -z "$kv_type" ] || printf '%s\n' --kv-type "$kv_type"
        [ -z "$local_api" ] || printf '%s\n' --local-api "$local_api"
        [ -z "$calibrate" ] || printf '%s\n' --calibrate "$calibrate"
    } >"$work/agent.args"
    changed=no
    cmp -s "$work/agent.args" "$prefix/agent.args" || changed=yes
    cp "$work/agent.args" "$prefix/agent.args"
    cp "$target/bin/shoal-agent" "$prefix/shoal-agent.new"
    chmod 755 "$prefix/shoal-agent.new"
    mv "$prefix/shoal-agent.new" "$prefix/shoal-agent"
    [ "$member" = yes ] || place_token
    [ -z "$unit_file" ] || write_unit
}

place_token() {
    (umask 077 && printf '%s\n' "$token" >"$work/token")
    [ "$account" = "$(id -un)" ] || chown "$account:" "$work/token"
    # Renamed into place: in the account's own folder root follows no link.
    mv "$work/token" "$prefix/state/token"
}

# Nothing that the agent uses may lie in a home that is hidden from it.
home_access() {
    access=yes
    base=$("$target/bin/python" -c 'import sys; print(sys.base_prefix)')
    while IFS= read -r path; do
        case $path in /*) ;; *) continue ;; esac # a model's name, or a server's URL
        case $(readlink -f "$path" || echo "$path") in
        /home/* | /root/* | /run/user/*) access=read-only ;;
        esac
    done <<EOF
$prefix
$base
$(cat "$work/model_arguments" "$work/companion_arguments")
EOF
    echo "$access"
}

# What a compromised agent could not do, either. It needs no capability, writes its own state
# only, and talks over the network and to its children. Left out, because the agent or a
# companion server would break: PrivateDevices, and ProtectClock, which implies DeviceAllow and
# so takes GPUs and NPUs away; ProcSubset (memory and CPU are read in /proc);
# MemoryDenyWriteExecute (GPU drivers and vendors' servers compile at run time).
confinement() {
    printf '%s\n' NoNewPrivileges=yes LockPersonality=yes RestrictNamespaces=yes \
        RestrictRealtime=yes RestrictSUIDSGID=yes SystemCallArchitectures=native \
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK" \
        SystemCallFilter=@system-service SystemCallErrorNumber=EPERM UMask=0077
    # The rest needs rights that a user's own service manager lacks.
    [ "$service" = system ] || return 0
    printf '%s\n' "User=$account" "Environment=\"HOME=$prefix/state\"" \
        CapabilityBoundingSet= AmbientCapabilities= \
        ProtectSystem=strict "ReadWritePaths=\"$prefix/state\"" "ProtectHome=$(home_access)" \
        PrivateTmp=yes ProtectControlGroups=yes ProtectHostname=yes ProtectKernelLogs=yes \
        ProtectKernelModules=yes ProtectKernelTunables=yes ProtectProc=invisible
}

# Exit codes after which coming back is useless: docs/exit-codes.md.
write_unit() {
    mkdir -p "$(dirname "$unit_file")"
    {
        echo "[Unit]"
        echo "Description=shoal device agent ($name)"
        echo "Wants=network-online.target"
        echo "After=network-online.target"
        echo
        echo "[Service]"
        echo "ExecStart=\"$prefix/shoal-agent\" run"
        echo "Restart=on-failure"
        echo "RestartSec=5"
        echo "RestartPreventExitStatus=2 11 12 13 14 15 16 17 20 21 22 23 30 31"
        echo "KillMode=mixed"
        echo "TimeoutStopSec=30"
        confinement
        echo
        echo "[Install]"
        if [ "$service" = system ]; then
            echo "WantedBy=multi-user.target"
        else
            echo "WantedBy=default.target"
        fi
    } >"$unit_file"
    case $service in
    system) systemctl daemon-reload && systemctl --quiet enable "$unit" ;;
    user)
        systemctl --user daemon-reload && systemctl --user --quiet enable "$unit"
        loginctl enable-linger "$account" 2>/dev/null ||
            say "it runs while you are logged in; always: loginctl enable-linger $account"
        ;;
    esac
}

switch() {
    previous=$(readlink "$prefix/current" 2>/dev/null || true)
    ln -sfn "versions/$release" "$prefix/current"
    # What was upgraded by the orchestrator's order gives way to what was installed by hand.
    if [ -e "$prefix/state/upgrades" ]; then
        rm -rf "$prefix/state/upgrades"
        changed=yes
    fi
}

start_and_wait() {
    # Of the process before; in the account's own folder root follows no link.
    rm -f "$prefix/state/connected" "$prefix/state/exit-code"
    "$prefix/shoal-agent" start
    wait_until_joined
}

# An agent with a local API serves on when its certificate has expired, and never ends.
has_expired() {
    [ "$member" = yes ] && (cd / && "$target/bin/python" -c 'import sys
from datetime import UTC, datetime
from pathlib import Path
from agent.rpc.identity import IdentityStore
identity = IdentityStore(Path(sys.argv[1])).load()
sys.exit(identity is None or identity.seconds_left(datetime.now(UTC)) > 0)' \
        "$prefix/state" 2>/dev/null)
}

# A fleet that removed the device refuses its identity for good (docs/exit-codes.md).
join_anew() { # what the agent ended with
    [ "$member" = yes ] || return 1
    case $1 in
    17) why="this device's identity is damaged or has expired" ;;
    20 | 23) why="the fleet does not know this device any more: it was removed" ;;
    *) return 1 ;;
    esac
    [ -n "$token" ] || die "$why" "on the orchestrator: shoal token create; then run this again \
with --token TOKEN: it joins anew"
    say "$why; joining anew with the token"
    "$prefix/shoal-agent" stop
    for file in identity.json device.key device.crt ca.crt kv-shared.json; do
        rm -f "$prefix/state/$file"
    done
    place_token
    start_and_wait
}

start_agent() {
    joined=yes
    if [ "$start" = 0 ]; then
        say "installed, not started: $prefix/shoal-agent start"
        return 0
    fi
    step "joining"
    if [ "$previous" = "versions/$release" ] && [ "$changed" = no ] &&
        "$prefix/shoal-agent" status >/dev/null 2>&1 && [ -f "$prefix/state/connected" ]; then
        say "nothing changed; the agent runs"
        return 0
    fi
    [ -z "$previous" ] || "$prefix/shoal-agent" stop
    if has_expired; then
        # Without a token it goes on as it was, for the clients on it.
        [ -n "$token" ] || "$prefix/shoal-agent" start
        join_anew 17 || joined=no
    else
        start_and_wait || join_anew "$(cat "$prefix/state/exit-code" 2>/dev/null)" || joined=no
    fi
    if [ "$joined" = yes ]; then
        rm -f "$prefix/state/token"
        for old in "$prefix"/versions/*; do
            [ "$old" = "$target" ] || rm -rf "$old"
        done
        return 0
    fi
    "$prefix/shoal-agent" logs 2>/dev/null | tail -n 5 >&2 || true
    if [ -n "$previous" ] && [ "$previous" != "versions/$release" ]; then
        ln -sfn "$previous" "$prefix/current"
        "$prefix/shoal-agent" stop || true
        "$prefix/shoal-agent" start
        die "the new version did not start; the one before is back ($previous)"
    fi
    die "the agent did not join" "see the lines above; run this again with a new token, \
or remove it with: $prefix/shoal-agent uninstall"
}

# Joined once a hub has welcomed this process, which says so by a file.
wait_until_joined() {
    waited=0 absent=0
    while [ "$waited" -lt $((JOIN_LIMIT_S * 5)) ]; do
        sleep 0.2
        waited=$((waited + 1))
        if "$prefix/shoal-agent" status >/dev/null 2>&1; then
            absent=0
            [ ! -f "$prefix/state/connected" ] || return 0
        else
            absent=$((absent + 1))
            [ "$absent" -lt 10 ] || return 1
        fi
    done
    return 1
}

remove() {
    if [ -x "$prefix/shoal-agent" ]; then
        exec "$prefix/shoal-agent" uninstall
    fi
    [ -f "$prefix/.shoal-agent" ] || die "$prefix holds no installed agent" \
        "pass the --prefix that it was installed with"
    # Stopped half-way: no process and no service was made yet.
    [ "$(kept created_user)" != yes ] || userdel "$(kept user)" || deluser "$(kept user)" || true
    rm -rf "$prefix"
    say "removed what a broken installation left in $prefix"
}

main() {
    umask 022
    read_settings "$@"
    if [ "$uninstall" = yes ]; then
        remove
        return
    fi
    settle_names
    check_machine
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    began=$(date +%s)
    step "checks"
    open_source
    fetch "$WHEEL"
    fetch constraints.txt
    check_options
    plan_engine
    check_fleet
    choose_service
    say_plan
    if [ "$dry_run" = yes ]; then
        say "a dry run: nothing was changed"
        return
    fi
    make_places
    install_environment
    install_models
    settle_companions
    install_engine
    write_settings
    switch
    start_agent
    step ""
    say "done in $(($(date +%s) - began)) s; control it with $prefix/shoal-agent"
}

# Last, so that a download that breaks off runs nothing.
main "$@" </dev/null
