package deps

import (
	"flag"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the texts of the programs into the golden file")

// TestTexts compares the programs' texts with the golden file, so that a review shows each change.
// Texts are literals on one line with at least three words. Longer literals are help texts and
// scripts, which have their own golden files.
func TestTexts(t *testing.T) {
	_, files := readTree(t)
	var all strings.Builder
	for _, f := range files {
		if top, _, _ := strings.Cut(f.path, "/"); f.test || slices.Contains(kits(), f.folder()) || top != "balancer" && top != "cmd" && top != "dataplane" && top != "store" {
			continue
		}
		if texts := textsOf(f.syntax); len(texts) > 0 {
			all.WriteString("\n" + f.path + "\n  " + strings.Join(texts, "\n  ") + "\n")
		}
	}
	golden := filepath.Join("testdata", "texts.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), all.String()); d != "" {
		t.Errorf("texts have changed: read them as an operator (go test ./test/deps -update writes them; -want +got):\n%s", d)
	}
}

// textsOf returns a file's texts, in order.
func textsOf(f *ast.File) (all []string) {
	take := func(x ...ast.Expr) {
		for _, x := range x {
			if text := literal(x); len(strings.Fields(text)) > 2 && !strings.Contains(strings.TrimSuffix(text, "\n"), "\n") {
				all = append(all, strconv.Quote(text))
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			take(n.Args...)
		case *ast.CompositeLit:
			take(n.Elts...)
		case *ast.KeyValueExpr:
			take(n.Value)
		case *ast.ReturnStmt:
			take(n.Results...)
		case *ast.AssignStmt:
			take(n.Rhs...)
		case *ast.ValueSpec:
			take(n.Values...)
		}
		return true
	})
	return all
}

// literal returns the text of a string literal, or of a sum that contains a string literal. It
// replaces the sum's other terms by an ellipsis.
func literal(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(x.Value); err == nil && x.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		a, b := literal(x.X), literal(x.Y)
		switch {
		case x.Op != token.ADD || a+b == "":
		case a == "":
			return "…" + b
		case b == "":
			return a + "…"
		default:
			return a + b
		}
	}
	return ""
}
