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
cp --parents crates/*/DESIGN.md simulator/DESIGN.md lab/DESIGN.md "$source"
# The source is not in the book, so its files are named without a link, except for the pages about its design. SUMMARY.md is the list
# of pages beside every page.
find "$source" -name '*.md' -exec perl -pi \
  -e 's#\[([^\]]*)\]\((?:\.\./)*(?:crates|lab|simulator|fuzz)(?:/(?![^)]*DESIGN\.md)[^)]*)?\)#$1#g; s#\]\(docs/SUMMARY\.md\)#](index.html)#g' {} +
rm "$source/docs/SUMMARY.md" "$source/docs/book.toml"
cp docs/book.toml "$source"
{
  sed 's|](\([^)]*\))|](docs/\1)|' docs/SUMMARY.md
  printf '\n# The project\n\n'
  for page in README.md ARCHITECTURE.md DESIGN.md {crates/*,timelines,simulator,lab,deploy}/DESIGN.md CONTRIBUTING.md BENCHMARKS.md CHANGELOG.md; do
    # The pages of the crates are below the page of the whole.
    [[ $page == */* ]] && printf '  '
    printf -- '- [%s](%s)\n' "$(sed -n 's/^# //p; /^# /q' "$page")" "$page"
  done
} >"$source/SUMMARY.md"

"$mdbook" build "$source" --dest-dir "$PWD/$book"
# index.html is a copy of the first page, from which relative links lead elsewhere.
first=$(sed -n 's|^[- ]*\[.*](\(.*\)\.md)$|docs/\1.html|p' docs/SUMMARY.md | head -n 1)
printf '<!doctype html><meta http-equiv="refresh" content="0; url=%s"><a href="%s">tidegate</a>\n' "$first" "$first" >"$book/index.html"
python3 lab/book_links.py "$book"
