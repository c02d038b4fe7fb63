package table

import (
	"slices"
	"strings"
	"unicode"
)

// Column is one column in a table.
type Column struct {
	Title string
	// Wide hides the column except in the wide form.
	Wide bool
	// Skip hides the column in every form.
	Skip bool
	// Right aligns cells to the right, for numbers.
	Right bool
	// Style returns the style for a cell with this text. If nil, cells are plain.
	Style func(text string) Style
}

func (c *Column) shown(form Form) bool { return !c.Skip && (form.Wide || !c.Wide) }

// Form configures how a table is printed.
type Form struct {
	// Wide also shows the wide columns.
	Wide bool
	// Color enables cells' styles, as terminal escape sequences.
	Color bool
	// Width is the maximum width of a line in characters, or 0 if there is no limit. If lines would
	// be wider, cells in the widest columns are cut, except in right-aligned columns. The last cell
	// on a line is cut at its end. Other cells are cut in the middle, because long names often
	// differ only at their ends. If the cells would become too short, nothing is cut.
	Width int
}

// Table collects rows. The zero value has no columns; New returns a table with columns.
type Table struct {
	columns []Column
	rows    [][]string
	// printed holds the widths of the columns in the previous part, or nil before the first part.
	printed []int
}

// New returns an empty table with these columns.
func New(columns ...Column) *Table { return &Table{columns: columns} }

// Row adds a row, which must have a cell for each column, including hidden columns. An empty cell
// is printed as "-". Row panics if the number of cells is wrong.
func (t *Table) Row(cells ...string) {
	if len(cells) != len(t.columns) {
		panic("table: a row needs a cell for each column")
	}
	row := make([]string, len(cells))
	for i, text := range cells {
		if row[i] = Line(text); row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// Len returns the number of rows that Part has not yet dropped.
func (t *Table) Len() int { return len(t.rows) }

// gap separates columns.
const gap = "  "

// Part returns the text of the rows that were added since the last call to Part, and drops them. A
// long table can thus be printed in parts. Only the first part has titles. Columns are at least as
// wide as in the previous part.
func (t *Table) Part(form Form) string {
	text := t.Text(form)
	t.printed, t.rows = t.widths(), nil
	return text
}

// Text returns the table: a line with the titles, and a line for each row.
func (t *Table) Text(form Form) string {
	widths := t.fit(t.widths(), form)
	var b strings.Builder
	if t.printed == nil {
		titles := make([]string, len(t.columns))
		for i, c := range t.columns {
			titles[i] = c.Title
		}
		t.line(&b, titles, widths, Form{Wide: form.Wide})
	}
	for _, row := range t.rows {
		t.line(&b, row, widths, form)
	}
	return b.String()
}

func (t *Table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		if widths[i] = Width(c.Title); t.printed != nil {
			widths[i] = max(widths[i], t.printed[i])
		}
		for _, row := range t.rows {
			widths[i] = max(widths[i], Width(row[i]))
		}
	}
	return widths
}

// fit returns the columns' printed widths. If lines would be longer than form.Width, it reduces the
// widths of the widest columns.
func (t *Table) fit(widths []int, form Form) []int {
	if form.Width == 0 {
		return widths
	}
	for limit := slices.Max(append(slices.Clone(widths), shortest)); limit >= shortest; limit-- {
		fitted, total := slices.Clone(widths), -len(gap)
		for i, c := range t.columns {
			if !c.shown(form) {
				continue
			}
			if !c.Right {
				fitted[i] = min(fitted[i], max(limit, Width(c.Title)))
			}
			total += fitted[i] + len(gap)
		}
		if total <= form.Width {
			return fitted
		}
	}
	return widths
}

// line writes one row. It writes spaces only before the next cell, so no line ends in spaces.
func (t *Table) line(b *strings.Builder, row []string, widths []int, form Form) {
	pending := 0
	first := true
	last := t.last(form)
	for i, c := range t.columns {
		if !c.shown(form) {
			continue
		}
		if !first {
			pending += len(gap)
		}
		first = false
		text := row[i]
		if i == last {
			text = Cut(text, widths[i])
		} else {
			text = cutMiddle(text, widths[i])
		}
		pad := widths[i] - Width(text)
		if c.Right {
			pending += pad
			pad = 0
		}
		b.WriteString(strings.Repeat(" ", pending))
		if form.Color && c.Style != nil {
			text = Paint(text, c.Style(row[i]))
		}
		b.WriteString(text)
		pending = pad
	}
	b.WriteByte('\n')
}

// shortest is the minimum width to which a column is reduced.
const shortest = 10

// last returns the index of the last column that is shown.
func (t *Table) last(form Form) int {
	for i := len(t.columns) - 1; i > 0; i-- {
		if t.columns[i].shown(form) {
			return i
		}
	}
	return 0
}

// Line replaces control characters with spaces, so text from other sources can't control the
// terminal.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
