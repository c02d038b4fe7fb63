package table

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestTextPadsByWidthWithoutTrailingSpaces(t *testing.T) {
	tab := New(Column{Title: "NAME"}, Column{Title: "N", Right: true}, Column{Title: "NOTE", Wide: true}, Column{Title: "STATE"})
	tab.Row("web", "7", "first", "active")
	tab.Row("größe", "12", "", "")
	tab.Row("東京", "3", "a\nb\x1b[31m", "down")
	narrow := "NAME    N  STATE\nweb     7  active\ngröße  12  -\n東京    3  down\n"
	if got := tab.Text(Form{}); got != narrow {
		t.Errorf("narrow table =\n%swant\n%s", got, narrow)
	}
	wide := "NAME    N  NOTE      STATE\nweb     7  first     active\ngröße  12  -         -\n東京    3  a b [31m  down\n"
	if got := tab.Text(Form{Wide: true}); got != wide {
		t.Errorf("wide table =\n%swant\n%s", got, wide)
	}
}

// TestParts prints a table in parts of one row. Only the first part may have titles. Columns must
// become wider if a row needs it, but never narrower.
func TestParts(t *testing.T) {
	tab := New(Column{Title: "NAME"}, Column{Title: "N", Right: true}, Column{Title: "STATE"})
	text := ""
	for _, row := range [][]string{{"a", "1", "up"}, {"longer", "20", "up"}, {"b", "3", "down"}} {
		tab.Row(row...)
		text += tab.Part(Form{Width: 60})
		if tab.Len() != 0 {
			t.Fatalf("after Part: rows = %d, want 0", tab.Len())
		}
	}
	want := "NAME  N  STATE\na     1  up\nlonger  20  up\nb        3  down\n"
	if text != want {
		t.Errorf("table =\n%swant\n%s", text, want)
	}
}

func TestColorDoesNotMoveColumns(t *testing.T) {
	style := func(text string) Style {
		if text == "down" {
			return Bad
		}
		return Plain
	}
	tab := New(Column{Title: "STATE", Style: style}, Column{Title: "NAME"})
	tab.Row("down", "a")
	tab.Row("active", "b")
	want := "STATE   NAME\n\x1b[31mdown\x1b[0m    a\nactive  b\n"
	if got := tab.Text(Form{Color: true}); got != want {
		t.Errorf("table in color = %q, want %q", got, want)
	}
}

// TestTextLaws prints random cells. There must be a line for the titles and for each row, without
// trailing spaces. The last column must start at the same position in all lines.
func TestTextLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := []rune("ab ö東\t\n\x1b-.:/\u0301")
	word := func() string {
		w := make([]rune, r.IntN(12))
		for i := range w {
			w[i] = letters[r.IntN(len(letters))]
		}
		return string(w)
	}
	for range 500 {
		tab := New(Column{Title: "A"}, Column{Title: "BB"}, Column{Title: "C"})
		rows := r.IntN(6)
		for range rows {
			tab.Row(word(), word(), "|"+strings.TrimSpace(word())+"|")
		}
		text := tab.Text(Form{})
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if len(lines) != rows+1 {
			t.Fatalf("lines = %d, want %d:\n%q", len(lines), rows+1, text)
		}
		at := Width(lines[0][:strings.Index(lines[0], "C")])
		for _, line := range lines[1:] {
			if got := Width(line[:strings.Index(line, "|")]); got != at {
				t.Fatalf("last column starts at %d, want %d:\n%q", got, at, text)
			}
			if strings.HasSuffix(line, " ") {
				t.Fatalf("line = %q, want no trailing space", line)
			}
		}
	}
}

func TestWrap(t *testing.T) {
	got := Wrap("ipvs: the kernel has no ip_vs; iptables: not found", 20)
	want := []string{"ipvs: the kernel has", "no ip_vs; iptables:", "not found"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("Wrap = %q, want %q", got, want)
	}
	if got := Wrap("", 20); got != nil {
		t.Errorf("empty text: Wrap = %q, want nil", got)
	}
}

func TestWidthCutsTheLastCell(t *testing.T) {
	tab := New(Column{Title: "NAME"}, Column{Title: "WHY"}, Column{Title: "MORE", Wide: true})
	tab.Row("web", "connection refused: nothing listens there", "x")
	tab.Row("dns", "東京東京東京東京東京", "")
	tab.Row("ok", "", "")
	want := "NAME  WHY\nweb   connection ref…\ndns   東京東京東京東…\nok    -\n"
	if got := tab.Text(Form{Width: 21}); got != want {
		t.Errorf("table =\n%swant\n%s", got, want)
	}
	if got := tab.Text(Form{Width: 12}); !strings.Contains(got, "there\n") {
		t.Errorf("very narrow table =\n%s\nwant uncut text", got)
	}
}

// TestWidthCutsTheWidest limits a table's width. Long names must be cut in the middle and keep
// their style. Numbers and short cells must not be cut.
func TestWidthCutsTheWidest(t *testing.T) {
	styled := func(text string) Style {
		if text == "a-name-that-is-too-long-01" {
			return Bad
		}
		return Plain
	}
	tab := New(Column{Title: "NAME", Style: styled}, Column{Title: "ADDRESS"}, Column{Title: "N", Right: true}, Column{Title: "STATE"})
	tab.Row("a-name-that-is-too-long-01", "10.96.0.1:80", "12345678901", "active")
	tab.Row("a-name-that-is-too-long-02", "10.96.0.2:80", "1", "up")
	want := "NAME           ADDRESS                 N  STATE\n" +
		"a-name-…ong-01  10.96.0.1:80  12345678901  active\n" +
		"a-name-…ong-02  10.96.0.2:80            1  up\n"
	want = strings.Replace(want, "NAME          ", "NAME           ", 1)
	if got := tab.Text(Form{Width: 49}); got != want {
		t.Errorf("table =\n%swant\n%s", got, want)
	}
	if got := tab.Text(Form{Width: 49, Color: true}); !strings.Contains(got, "\x1b[31ma-name-…ong-01\x1b[0m  10") {
		t.Errorf("colored table =\n%s\nwant a style around the cut name", got)
	}
	if got := tab.Text(Form{}); !strings.Contains(got, "a-name-that-is-too-long-01") {
		t.Errorf("table without a width =\n%s\nwant the whole name in it", got)
	}
}

// TestWidthLaws prints random cells with random widths. No line may be wider, columns must be
// aligned, and nothing may be cut if the whole table fits.
func TestWidthLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	letters := []rune("abcö東-.:/\u0301")
	word := func(n int) string {
		w := make([]rune, 1+r.IntN(n))
		for i := range w {
			w[i] = letters[r.IntN(len(letters))]
		}
		return string(w)
	}
	for range 500 {
		tab := New(Column{Title: "A"}, Column{Title: "N", Right: true}, Column{Title: "B"}, Column{Title: "C"})
		for range 1 + r.IntN(5) {
			tab.Row(word(60), "12345", word(20), "|"+word(40))
		}
		whole, width := tab.Text(Form{}), 41+r.IntN(100) // at least 10 for each of three columns, 5 for N, and the gaps
		text, widest := tab.Text(Form{Width: width}), 0
		for line := range strings.Lines(whole) {
			widest = max(widest, Width(strings.TrimSuffix(line, "\n")))
		}
		if widest <= width && text != whole {
			t.Fatalf("width %d: want the whole table, which fits:\n%sgot\n%s", width, whole, text)
		}
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		at := Width(lines[0][:strings.Index(lines[0], "C")])
		for _, line := range lines[1:] {
			if w := Width(line); w > width {
				t.Fatalf("line width = %d, want at most %d:\n%s", w, width, text)
			}
			if got := Width(line[:strings.Index(line, "|")]); got != at {
				t.Fatalf("last column starts at %d, want %d:\n%s", got, at, text)
			}
		}
	}
}
