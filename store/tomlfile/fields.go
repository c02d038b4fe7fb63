package tomlfile

import (
	"strings"

	"vipd/balancer"
)

// fieldLines maps the path of each [services.NAME] and [vips."ADDRESS"] table to the line numbers
// of its fields. Problems use these numbers when the text is no longer in memory. Tables with the
// same layout share their lines, so a generated file needs little memory.
func (d *Document) fieldLines() map[string]balancer.FieldLines {
	f := fieldScan{doc: d, tables: map[string][]byte{}, at: map[string]int{}, paths: interner{}}
	s := scanner{text: d.text, counts: map[string]int{}}
	s.visit = func(path []byte, line int, _ bool) {
		switch {
		case s.parts == topDepth:
			f.enter(path)
		case s.parts > topDepth && f.prefix != "":
			f.field(path[len(f.prefix):], line)
		}
	}
	s.scan()
	f.leave()
	texts, out := interner{}, make(map[string]balancer.FieldLines, len(f.tables))
	for table, text := range f.tables {
		out[table] = balancer.FieldLines(texts.bytes(text))
	}
	return out
}

// fieldScan is the state of fieldLines.
type fieldScan struct {
	doc *Document
	// tables maps each table to its known line numbers, in the format of FieldLines.
	tables map[string][]byte
	// prefix is the path of the current table followed by a dot, or "" outside tables. line is the
	// table's line number.
	prefix string
	line   int
	// at holds the line numbers of the table's fields so far. It omits fields on the same line as
	// their parent.
	at map[string]int
	// text holds the line numbers of the fields found since enter, in the format of FieldLines.
	// leave appends it to tables. A table may consist of thousands of such pieces.
	text  []byte
	paths interner
}

// enter starts or continues the table at path, which has two parts.
func (f *fieldScan) enter(path []byte) {
	if f.prefix != "" && string(path) == f.prefix[:len(f.prefix)-1] {
		return
	}
	f.leave()
	table := string(path)
	if !strings.HasPrefix(table, "services.") && !strings.HasPrefix(table, "vips.") {
		return
	}
	f.prefix, f.line = table+".", f.doc.Where(table).Line
}

// leave ends the current table, if any, and appends its new lines to tables.
func (f *fieldScan) leave() {
	if f.prefix != "" && len(f.text) > 0 {
		table := f.prefix[:len(f.prefix)-1]
		f.tables[table] = append(f.tables[table], f.text...)
	}
	clear(f.at)
	f.prefix, f.text = "", f.text[:0]
}

// field records the line of a field, unless its parent is on the same line. If a field repeats, the
// first line is used, so an array of tables has the line of its first element.
func (f *fieldScan) field(path []byte, line int) {
	if _, known := f.at[string(path)]; known || line == f.around(path) {
		return
	}
	field := f.paths.bytes(path)
	f.at[field] = line
	f.text = balancer.AppendFieldLine(f.text, field, line-f.line)
}

// around returns the line of the nearest known parent of path, which may be the table itself.
func (f *fieldScan) around(path []byte) int {
	for i := len(path) - 1; i > 0; i-- {
		if path[i] != '.' && path[i] != '[' {
			continue
		}
		if line, known := f.at[string(path[:i])]; known {
			return line
		}
	}
	return f.line
}

// bytes returns b as an interned string.
func (in interner) bytes(b []byte) string {
	own, known := in[string(b)]
	if !known {
		own = string(b)
		in[own] = own
	}
	return own
}
