package examples

import (
	"os"
	"strings"
	"testing"
)

// guide contains the shell blocks in docs/fleet.md. The word after "sh" in a block's opening line
// names the reader: "quick" (one machine), "operator" (the machine with the scripts), or "hosts"
// (all other machines, over ssh). The tests don't run the blocks of "hosts". Additional words are
// explained where the tests use them.
type guide struct{ blocks []*guideBlock }

type guideBlock struct {
	line        int
	whose, more string
	text        string
	followed    bool
}

func readGuide(t testing.TB) *guide {
	t.Helper()
	text, err := os.ReadFile("../../docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{}
	var open *guideBlock
	for i, line := range strings.Split(string(text), "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open != nil:
			open = nil
		case fence:
			words := strings.Fields(info)
			open = &guideBlock{line: i + 1}
			if len(words) > 1 && words[0] == "sh" {
				open.whose, open.more = words[1], strings.Join(words[2:], " ")
				g.blocks = append(g.blocks, open)
			}
		case open != nil:
			open.text += line + "\n"
		}
	}
	return g
}

// block returns the block that is for the reader whose and contains text.
func (g *guide) block(t testing.TB, whose, text string) string {
	t.Helper()
	for _, b := range g.blocks {
		if b.whose == whose && strings.Contains(b.text, text) {
			b.followed = true
			return b.text
		}
	}
	t.Fatalf("docs/fleet.md lacks a block for %s with %q", whose, text)
	return ""
}

// finished fails the test if a block for this reader was not run.
func (g *guide) finished(t testing.TB, whose string) {
	t.Helper()
	for _, b := range g.blocks {
		if b.whose == whose && !b.followed {
			t.Errorf("docs/fleet.md:%d: no test runs this block:\n%s", b.line, b.text)
		}
	}
}
