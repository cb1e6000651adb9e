# On the node: checks out what was pushed.
# Arguments: DIRECTORY CLEAN, and for each repository its PLACE below DIRECTORY, what to CHECK OUT, and its COMMIT.
set -eu
directory=$1
clean=$2
shift 2
while [ $# -gt 0 ]; do
    cd "$directory/$1"
    git checkout --quiet --force "$2" --
    [ "$clean" = no ] || git clean --quiet -ffdx
    commit=$(git rev-parse HEAD)
    if [ -n "$3" ] && [ "$commit" != "$3" ]; then
        echo "$1 is at $commit instead of $3" >&2
        exit 1
    fi
    shift 3
done
