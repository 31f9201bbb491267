#!/bin/sh
# Usage: check.sh ROOT. Reads the includes and file names of every folder under ROOT, prints one line for each breach of the architecture, exits 1 if there is any.
set -u
cd "$1" || exit 2
export LC_ALL=C

folders="core model cluster schedule sim partition validation jobs interop planner exec api apps python web tests bench"

existing=""
for folder in $folders; do
    [ -d "$folder" ] && existing="$existing $folder"
done
if [ -z "$existing" ]; then
    echo "no source folders in $1" >&2
    exit 2
fi

# shellcheck disable=SC2086  # a list of folders without blanks
breaches=$(find $existing -path tests/architecture -prune -o -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.hpp' \) -print | sort | awk '
    BEGIN {
        allowed["core"] = "core"
        allowed["model"] = "core model"
        allowed["cluster"] = "core cluster"
        allowed["schedule"] = "core model cluster schedule"
        allowed["sim"] = "core model cluster schedule sim"
        allowed["partition"] = "core model cluster schedule sim partition"
        allowed["validation"] = "core model cluster schedule sim validation"
        allowed["jobs"] = "core model cluster schedule sim jobs"
        allowed["interop"] = "core model cluster schedule interop"
        allowed["planner"] = "core model cluster schedule sim partition planner"
        allowed["exec"] = "core model cluster schedule exec"
        allowed["api"] = "core model cluster schedule sim partition validation jobs interop planner exec api"
        allowed["apps"] = allowed["api"] " apps"
        allowed["python"] = "core api python"
        allowed["web"] = "core model api web"
        allowed["bench"] = allowed["apps"] " bench"
        allowed["tests"] = allowed["apps"] " web tests"
        heavy = "^(toml\\+\\+/|toml\\.hpp|nlohmann/|boost/graph|boost/program_options|Eigen/|unsupported/Eigen|mpi\\.h|cuda|cublas|cudnn|nccl|fmt/ranges|onnx/|google/protobuf|openssl/|zlib\\.h)"
        gpu = "^(cuda|cublas|cudnn|nccl)"
    }
    {
        file = $0
        count = split(file, parts, "/")
        folder = parts[1]
        stem = parts[count]
        sub(/\..*$/, "", stem)
        is_header = file ~ /\.(h|hpp|cuh)$/
        in_cuda = file ~ /^exec\/cuda\//
        # What table.cpp is compiled from, once for each instruction set: no public face either.
        in_kernels = file ~ /^exec\/cpu\/body\//
        if (stem ~ /(^|_)(utils?|helpers?|common|managers?|misc)(_|$)/) print file ": a file is named for its concept, not \"" stem "\""
        if (file ~ /\.cu$/ && !in_cuda) print file ": CUDA stays in exec/cuda/"
        # Headers that add to the namespaces of others what an older library lacks.
        adds_to_others = file ~ /^web\/wasm\/library\/(boost\/|newer_library\.h)/
        number = 0
        has_namespace = 0
        while ((status = (getline line < file)) > 0) {
            ++number
            if (line ~ "^namespace " folder "(::[a-z_:]+)? *\\{" || (in_kernels && line ~ /^namespace exec::cpu::INSTRUCTION_SET *\{/)) has_namespace = 1
            # Emscripten of Debian 12 comes with libc++ 14, which lacks most of them.
            if (folder ~ /^(core|model|cluster|schedule|sim|planner|partition|jobs|interop|api)$/ && line ~ /std::ranges::/)
                print file ":" number ": std::ranges, which the library of the page (./run web) has not"
            if (line !~ /^[ \t]*#[ \t]*include[ \t]*[<"]/) continue
            is_ours = line ~ /include[ \t]*"/
            path = line
            sub(/^[ \t]*#[ \t]*include[ \t]*[<"]/, "", path)
            sub(/[>"].*$/, "", path)
            where = file ":" number ": "
            # A .cuh is for .cu files alone and no public face.
            if (is_header && !(in_cuda && file ~ /\.cuh$/) && !in_kernels && path ~ heavy) print where "heavy header " path " in a header"
            if (!in_cuda && path ~ gpu) print where path " outside exec/cuda/"
            if (!is_ours) continue
            if (!in_kernels && path ~ /^exec\/cpu\/body\// && path != "exec/cpu/body/table.h") print where path " outside exec/cpu/body/"
            top = path
            if (top !~ /\//) { print where "\"" path "\" is not written from the root"; continue }
            sub(/\/.*$/, "", top)
            if (top == "." || top == ".." || !(top in allowed)) {
                if (path !~ heavy) print where "\"" path "\" is not written from the root"
                continue
            }
            if (index(" " allowed[folder] " ", " " top " ") == 0) print where folder " may not include " path
        }
        close(file)
        if (status < 0) print file ": cannot be read"
        if (is_header && folder != "tests" && folder != "bench" && !adds_to_others && !has_namespace) print file ": no namespace " folder
    }')

[ -z "$breaches" ] && exit 0
echo "$breaches"
exit 1
