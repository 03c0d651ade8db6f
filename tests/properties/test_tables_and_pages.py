"""For any bytes and any text: a table or a clear refusal, and a page that shows the text and nothing else."""

import csv
import io
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustly.errors import DataError
from robustly.report import html
from robustly.report.findings import shortened
from robustly.rows.files import FileTable, read_table

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30)
CELLISH = st.text("ab1,;\t\"'\n\r.-é\0🙂 ", max_size=12)


class Seen(HTMLParser):
    """What a browser would see: tags, and text between them."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


@given(
    st.one_of(st.binary(max_size=200), CELLISH.map(str.encode)),
    st.sampled_from(["csv", "tsv", "txt", "parquet", "csv.gz"]),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_table_or_are_refused_with_the_name_of_the_file(tmp_path_factory, content, ending):
    path = tmp_path_factory.getbasetemp() / f"any.{ending}"
    path.write_bytes(content)
    try:
        table = read_table(path)
    except DataError as error:
        said, table = str(error), None
    if table is None:
        assert str(path) in said
        assert "\n" not in said
    else:
        assert len(table.frame) > 0
        assert table.frame.columns.is_unique


@given(
    st.lists(TEXT.map(str.strip).filter(bool), min_size=1, max_size=4, unique=True),
    st.lists(st.lists(TEXT, min_size=4, max_size=4), min_size=1, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_what_a_spreadsheet_writes_is_read_back(tmp_path_factory, header, rows):
    # A value that pandas takes for a missing one, or for a number, comes back as that; words are marked here.
    rows = [[f"w{value}" for value in row[: len(header)]] for row in rows]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow([f"n{name}" for name in header])
    writer.writerows(rows)
    path = tmp_path_factory.getbasetemp() / "sheet.csv"
    path.write_bytes(buffer.getvalue().encode())
    table = read_table(path)
    assert list(table.frame.columns) == [f"n{name}" for name in header]
    assert table.frame.to_numpy().tolist() == rows
    lines = buffer.getvalue().splitlines(keepends=False)
    if table.line(0) is not None and not any(
        mark in buffer.getvalue() for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    ):
        assert len(lines) == len(rows) + 1
        assert table.line(len(rows) - 1) == len(lines)


@given(TEXT, TEXT, st.floats(allow_nan=True, allow_infinity=True))
@settings(max_examples=200, deadline=None)
def test_a_table_shows_any_text_and_adds_no_tag(name, word, number):
    plain = Seen(html.table(pd.DataFrame({"a": ["b"], "c": [1.0]}), caption="d"))
    frame = pd.DataFrame([[word, number]], columns=[name, f"{name} "])
    seen = Seen(html.table(frame, caption=name))
    assert [tag for tag in seen.tags if tag != "span"] == plain.tags
    assert {key for key, _ in seen.attributes} <= {key for key, _ in plain.attributes} | {"title"}
    shown = html.text(word)
    assert word in seen.texts or "�" in shown


@given(TEXT)
@settings(max_examples=200, deadline=None)
def test_a_heading_shows_any_text(title):
    seen = Seen(html.page(title, title, [(title, html.paragraph(title))]))
    assert seen.tags.count("script") == 1
    assert seen.tags.count("h1") == 1
    assert title in seen.texts or "�" in html.text(title)


@given(st.text(max_size=100), st.integers(5, 60))
@settings(max_examples=200, deadline=None)
def test_terminal_text_is_one_printable_line_that_fits(text, width):
    found = shortened(text, width)
    assert len(found) <= width
    assert all(one.isprintable() for one in found)


@given(st.integers(0, 200), st.sampled_from(["holds -1 in row {}.", "row {} is bad and row 3 too", "no number"]))
def test_a_row_in_an_error_gets_its_line(row, message):
    table = FileTable(Path("x.csv"), pd.DataFrame({"a": np.arange(3)}), ",", True)
    told = table.located(message.format(row))
    assert told.startswith(str(table.path))
    assert (f"row {row} (line {row + 2})" in told) == ("{}" in message)
    assert FileTable(table.path, table.frame).located(message.format(row)) == f"{table.path}: {message.format(row)}"


def test_blank_lines_and_quoted_breaks_make_lines_unknown(tmp_path):
    (tmp_path / "a.csv").write_text('x,y\n1,"two\nlines"\n2,b\n')
    assert read_table(tmp_path / "a.csv").line(1) is None
    (tmp_path / "b.csv").write_text("x,y\n1,a\n\n2,b\n")
    assert read_table(tmp_path / "b.csv").line(1) is None
    (tmp_path / "c.csv").write_text("x,y\n1,a\n2,b")
    assert read_table(tmp_path / "c.csv").line(1) == 3
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)
