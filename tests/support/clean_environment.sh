# Sets `clean` to the environment of a stranger whose home is $1: only what a shell needs, and how this machine reaches
# its package index. Sourced, then used as: env -i "${clean[@]}" command
clean_environment() {
    clean=(PATH="$PATH" HOME="$1" LANG="${LANG:-C.UTF-8}" TERM="${TERM:-dumb}" TMPDIR="${TMPDIR:-/tmp}")
    local name
    while IFS= read -r name; do
        clean+=("$name=${!name}")
    done < <(compgen -e | grep -E '^(PIP_.*|JAVA_HOME|JAVA_TOOL_OPTIONS|SSL_CERT_FILE|SSL_CERT_DIR|(https?|no)_proxy|(HTTPS?|NO)_PROXY)$')
}
