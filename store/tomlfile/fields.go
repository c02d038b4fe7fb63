package tomlfile

import (
	"strings"

	"vipd/balancer"
)

// fieldLines returns the lines of the fields of each [services.NAME] and [vips."ADDRESS"] by its path, for what is found wrong when
// the text is gone. Those that are written alike share theirs: a file that a program has written takes little.
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

// fieldScan is how far fieldLines has come.
type fieldScan struct {
	doc *Document
	// tables is what is known of each table, as FieldLines.
	tables map[string][]byte
	// prefix is the path of the table that the text is in, and a dot; "" outside of them. line is its line.
	prefix string
	line   int
	// at has the lines of its fields so far, but for those that are where what is around them is.
	at map[string]int
	// text is what this piece of the table adds to that: a table may be written in thousands of pieces.
	text  []byte
	paths interner
}

// enter goes on in the table at path, of two parts.
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

// leave keeps what is known of the table.
func (f *fieldScan) leave() {
	if f.prefix != "" && len(f.text) > 0 {
		table := f.prefix[:len(f.prefix)-1]
		f.tables[table] = append(f.tables[table], f.text...)
	}
	clear(f.at)
	f.prefix, f.text = "", f.text[:0]
}

// field notes a field. Where one is told of again, the first time counts: an array of tables is where its first element is.
func (f *fieldScan) field(path []byte, line int) {
	if _, known := f.at[string(path)]; known || line == f.around(path) {
		return
	}
	field := f.paths.bytes(path)
	f.at[field] = line
	f.text = balancer.AppendFieldLine(f.text, field, line-f.line)
}

// around is the line of the nearest known thing around path.
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

// bytes is text of what is in b.
func (in interner) bytes(b []byte) string {
	own, known := in[string(b)]
	if !known {
		own = string(b)
		in[own] = own
	}
	return own
}
