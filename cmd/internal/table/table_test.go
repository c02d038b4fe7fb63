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
		t.Errorf("narrow:\n got:\n%s want:\n%s", got, narrow)
	}
	wide := "NAME    N  NOTE      STATE\nweb     7  first     active\ngröße  12  -         -\n東京    3  a b [31m  down\n"
	if got := tab.Text(Form{Wide: true}); got != wide {
		t.Errorf("wide:\n got:\n%s want:\n%s", got, wide)
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
		t.Errorf("got %q, want %q", got, want)
	}
}

// Whatever is in the cells: as many lines as rows, no trailing space, no control character, and each column starts at
// the same place in all lines.
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
			t.Fatalf("got %d lines, want %d:\n%q", len(lines), rows+1, text)
		}
		at := Width(lines[0][:strings.Index(lines[0], "C")])
		for _, line := range lines[1:] {
			if got := Width(line[:strings.Index(line, "|")]); got != at {
				t.Fatalf("the last column starts at %d, want %d:\n%q", got, at, text)
			}
			if strings.HasSuffix(line, " ") {
				t.Fatalf("a line ends in a space: %q", line)
			}
		}
	}
}

func TestWrap(t *testing.T) {
	got := Wrap("ipvs: the kernel has no ip_vs; iptables: not found", 20)
	want := []string{"ipvs: the kernel has", "no ip_vs; iptables:", "not found"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Wrap("", 20); got != nil {
		t.Errorf("wrapping nothing: got %q, want nothing", got)
	}
}

func TestWidthCutsTheLastCell(t *testing.T) {
	tab := New(Column{Title: "NAME"}, Column{Title: "WHY"}, Column{Title: "MORE", Wide: true})
	tab.Row("web", "connection refused: nothing listens there", "x")
	tab.Row("dns", "東京東京東京東京東京", "")
	tab.Row("ok", "", "")
	want := "NAME  WHY\nweb   connection ref…\ndns   東京東京東京東…\nok    -\n"
	if got := tab.Text(Form{Width: 21}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := tab.Text(Form{Width: 12}); !strings.Contains(got, "there\n") {
		t.Errorf("where there is no room to speak of, nothing is cut, but got\n%s", got)
	}
}
