# On the node: makes repositories that can be pushed to, from a cache where there is one.
# Arguments: DIRECTORY CACHE, and for each repository its PLACE below DIRECTORY and its NAME below CACHE.
set -eu
directory=${1:-$HOME}
cache=$2
shift 2
# Whoever made the image may own its cache.
trusting="git -c safe.directory='*'"
while [ $# -gt 0 ]; do
    git=$directory/$1/.git
    if [ ! -e "$git/HEAD" ]; then
        # Made aside and moved: what is interrupted does not look finished.
        rm -rf "$git.new"
        mkdir -p "$directory/$1"
        if [ ! -e "$cache/$2" ] ||
            ! git -c safe.directory='*' clone --quiet --bare --upload-pack "$trusting upload-pack" "$cache/$2" "$git.new"; then
            git init --quiet --bare "$git.new"
            git -C "$git.new" remote add origin file:///dev/null
        fi
        git -C "$git.new" config core.bare false
        git -C "$git.new" remote set-url origin file:///dev/null
        git -C "$git.new" config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*'
        mv "$git.new" "$git"
        echo "made $1"
    fi
    # No branch is checked out while they are pushed, so that each may change.
    git --git-dir="$git" symbolic-ref HEAD refs/nodeyard/nothing
    shift 2
done
echo "directory $directory"
