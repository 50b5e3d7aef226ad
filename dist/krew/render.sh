#!/bin/sh
# Prints the manifest of a release: render.sh VERSION SHA256SUMS > cadastre.yaml
# VERSION has no "v"; SHA256SUMS is the release's file of that name.
set -eu
if [ $# != 2 ]; then
	echo "usage: render.sh VERSION SHA256SUMS" >&2
	exit 2
fi
sum() {
	sum=$(awk -v name="cadastre_$1_linux_$2.tar.gz" '$2 == name || $2 == "*" name { print $1 }' "$3")
	if [ -z "$sum" ]; then
		echo "render.sh: $3 has no line for cadastre_$1_linux_$2.tar.gz" >&2
		exit 1
	fi
	echo "$sum"
}
amd64=$(sum "$1" amd64 "$2")
arm64=$(sum "$1" arm64 "$2")
sed -e '/^#/d' -e "s/VERSION/$1/g" -e "s/SHA256_amd64/$amd64/" -e "s/SHA256_arm64/$arm64/" \
	"$(dirname "$0")/cadastre.yaml"
