#!/usr/bin/env bash
# Builds BIN/mongodb-stand-in, an in-memory server that speaks MongoDB's protocol, if MongoDB is
# missing, and Java and Maven are installed:  scripts/mongodb_stand_in.sh BIN
set -euo pipefail

bin=$(cd "$1" && pwd -P)
jars=$bin/../share/mongodb-stand-in

if command -v mongod >/dev/null || [ -x "$bin/mongodb-stand-in" ]; then exit 0; fi
if ! { command -v java && command -v javac && command -v mvn; } >/dev/null; then
  echo "no MongoDB, and no Java and Maven for a stand-in: the ladder skips the MongoDB steps" >&2
  exit 0
fi
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tests/ladder/mongo" && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$source/pom.xml" "$work"
if ! (cd "$work" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars &&
  javac -cp "jars/*" -d jars "$source/Server.java") >"$work/output" 2>&1; then
  tail -n 5 "$work/output" >&2
  echo "the stand-in for MongoDB cannot be built: the ladder skips the MongoDB steps" >&2
  exit 0
fi
mkdir -p "$jars"
cp "$work"/jars/* "$jars"
cat >"$bin/mongodb-stand-in" <<END
#!/bin/sh
# Accepts the options of mongod, but uses only --port
while [ \$# -gt 0 ]; do [ "\$1" != --port ] || port=\$2; shift; done
exec java -cp "$jars:$jars/*" Server "\$port"
END
chmod +x "$bin/mongodb-stand-in"
