#!/usr/bin/env bash
# `make docs`: builds the documentation as a book in target/book, and follows every link of its pages.
#
# The pages link to files outside of docs/, such as README.md. So the book is built from a copy of the pages, in which the folders
# are those of the repository. The links then work in the repository and in the book.
set -euo pipefail
cd "$(dirname "$0")/.."
mdbook=$PWD/target/tools/bin/mdbook source=target/book-source book=target/book

rm -rf "$source" "$book"
mkdir -p "$source"
cp -r docs deploy timelines ./*.md Makefile "$source"
rm "$source/docs/SUMMARY.md" "$source/docs/book.toml"
cp docs/book.toml "$source"
{
  sed 's|](\([^)]*\))|](docs/\1)|' docs/SUMMARY.md
  printf '\n# The project\n\n'
  for page in README ARCHITECTURE DESIGN CONTRIBUTING BENCHMARKS CHANGELOG; do
    printf -- '- [%s](%s.md)\n' "$(sed -n 's/^# //p; /^# /q' "$page.md")" "$page"
  done
} >"$source/SUMMARY.md"

"$mdbook" build "$source" --dest-dir "$PWD/$book"
python3 lab/book_links.py "$book"
