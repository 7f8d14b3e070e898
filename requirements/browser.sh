#!/bin/sh
# Chromium for the tests that open the report in a browser; does nothing where one is installed.
# Without it only those tests fail, so this script never ends `make test` by itself.
set -eu

for name in "${CHROMIUM:-chromium}" chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done

# Both steps need root; Debian's package is a real browser, Ubuntu's only a link to a snap.
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ "$(. /etc/os-release && echo "$ID")" = debian ]; then
    echo "==> Installing Chromium (apt-get install chromium), which the tests of the report's page need"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; then
        exit 0
    fi
fi

cat >&2 <<'MESSAGE'
==> ATTENTION: no Chromium found, so the tests that open the report in a browser will fail. Install it
    (on Debian: sudo apt-get install chromium; on Ubuntu: sudo snap install chromium), or name the program of
    a Chrome or Chromium that you have: make test CHROMIUM=/path/to/chrome
MESSAGE
