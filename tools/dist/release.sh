#!/bin/sh
# Makes all files of a release, but uploads nothing: `make release`. It refuses a tree with changes, a version that is not the
# first of CHANGELOG.md or has no date there, and a tag of another commit. docs/releasing.md has the steps before and after.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tag=v$version

refuse() {
    echo "release: $1" >&2
    exit 1
}

changes=$(git status --porcelain)
[ -z "$changes" ] || refuse "the tree has changes: commit them, or remove them:
$changes"
first=$(sed -n 's/^## //p' CHANGELOG.md | head -n 1)
expr "$first" : "$version - [0-9]\{4\}-[0-9]\{2\}-[0-9]\{2\}\$" >/dev/null ||
    refuse "the first version of CHANGELOG.md is \"$first\"; Cargo.toml has $version, so expected: \"$version - YEAR-MONTH-DAY\""
named=$(git rev-parse --quiet --verify "$tag^{commit}" || true)
[ -z "$named" ] || [ "$named" = "$(git rev-parse HEAD)" ] ||
    refuse "the tag $tag names $named, and this is $(git rev-parse HEAD): raise the version in Cargo.toml, or check out the tag"

${MAKE:-make} check
${MAKE:-make} deny
${MAKE:-make} dist
changes=$(git status --porcelain)
[ -z "$changes" ] || refuse "one of make check, deny and dist has changed the tree: find out why before you release:
$changes"

# A file of another target may be of an earlier build. Each bill of materials names its commit.
for bill in target/dist/phub-"$version"-*.cdx.json; do
    grep -q "\"$(git rev-parse HEAD)\"" "$bill" || refuse "$bill is not of this commit: build that target again, or remove its files"
done
echo "release: $version is ready, from $(git rev-parse HEAD)"
[ -n "$named" ] || echo "release: set the tag:
  git tag --annotate $tag --message 'Parameter Hub $version'
  git push origin $tag"
echo "release: upload these files of target/dist to $tag:"
sed 's/^[0-9a-f]*  /  /' target/dist/SHA256SUMS
echo "  SHA256SUMS"
