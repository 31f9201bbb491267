#!/bin/bash
# Usage: bundle.sh WASM_FOLDER SITE. Makes the page SITE/ of smsim.js and smsim.wasm in WASM_FOLDER: a static folder for any web
# server, or to be opened as a file. esbuild and D3 are Debian's (esbuild, node-d3); $ESBUILD and $NODE_PATH may name others.
set -euo pipefail
web=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)
wasm=$(readlink -f -- "$1")
site=$2
esbuild=${ESBUILD:-esbuild}
export NODE_PATH=${NODE_PATH:-/usr/share/nodejs}

mkdir -p "$site"
cp "$wasm/smsim.js" "$wasm/smsim.js.txt"
cp "$web/page/worker.js" "$wasm/worker.js.txt"
# Emscripten's script and the worker become texts of the page's one script: from a page that was opened as a file a browser
# starts no worker of another file.
"$esbuild" "$web/page/main.js" --bundle --format=iife --target=es2022 --minify --log-level=warning \
    --loader:.txt=text --alias:smsim-glue="$wasm/smsim.js.txt" --alias:smsim-worker="$wasm/worker.js.txt" \
    --legal-comments=none --outfile="$site/page.js"
"$esbuild" "$web/page/page.css" --bundle --minify --log-level=warning --outfile="$site/page.css"
cp "$web/page/index.html" "$site/index.html"
cp "$wasm/smsim.wasm" "$site/smsim.wasm"
{
    printf 'window.smsimWasm="'
    base64 -w 0 "$wasm/smsim.wasm"
    printf '";\n'
} >"$site/smsim.wasm.js"
python3 "$web/licences.py" "$web/.." >"$site/licences.txt"
