package style

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the maximum width of a comment line. A tab counts as four columns.
const maxColumns = 100

// top is the path to the top of the tree.
const top = "../.."

// others lists folders that don't contain the project's code.
var others = []string{"bin", "build"}

// file is a parsed Go file.
type file struct {
	path   string // from the top of the tree
	set    *token.FileSet
	syntax *ast.File
}

// files parses the tree's Go files, except in the folders in others.
func files(t *testing.T) (all []file) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(top, path)
		switch {
		case err != nil || relErr != nil:
			return fmt.Errorf("%w %w", err, relErr)
		case d.IsDir() && (slices.Contains(others, rel) || d.Name() == "testdata" || len(rel) > 1 && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		f := file{path: rel, set: token.NewFileSet()}
		f.syntax, err = parser.ParseFile(f.set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		all = append(all, f)
		return err
	})
	if err != nil || len(all) < 20 {
		t.Fatalf("parsed files = %d, error = %v, want all files of the tree", len(all), err)
	}
	return all
}

// TestCommentsFit measures comments that are on lines of their own. No line may be too wide, except
// preformatted text.
func TestCommentsFit(t *testing.T) {
	for _, f := range files(t) {
		text, err := os.ReadFile(filepath.Join(top, f.path))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for _, group := range f.syntax.Comments {
			for _, c := range group.List {
				line := f.set.Position(c.Pos()).Line
				if got := columns(lines[line-1]); got > maxColumns && isProse(lines[line-1]) {
					t.Errorf("%s:%d: comment has %d columns, want at most %d", f.path, line, got, maxColumns)
				}
			}
		}
	}
}

// isProse reports whether a line is only a comment, and not preformatted text.
func isProse(line string) bool {
	text, only := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
	return only && !strings.HasPrefix(text, " ")
}

func columns(line string) int {
	return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
}

// TestCommentsAreSentences reads the comments of functions, types, values and fields. None may have
// a fragment after its name ("Ready: ..."), a clause instead of a noun ("State is what ..."), or a
// verb that explains nothing ("take takes").
func TestCommentsAreSentences(t *testing.T) {
	for _, f := range files(t) {
		for name, doc := range docs(f.syntax) {
			if mistake := opening(name.Name, doc.Text()); mistake != "" {
				t.Errorf("%s:%d: %s", f.path, f.set.Position(doc.Pos()).Line, mistake)
			}
		}
	}
}

// vague matches openings that explain nothing: a clause instead of a noun, and a vague verb that
// repeats the name.
var vague = regexp.MustCompile(
	`^\w+ (is|are) (what|who|those|that of)\b|^(take takes|tell tells|say says|hear hears|look looks)\b`)

// opening describes the mistake in the opening of a comment, or returns "".
func opening(name, text string) string {
	switch {
	case strings.HasPrefix(text, name+": "):
		return fmt.Sprintf("%s is followed by a fragment, want a sentence such as %q", name, name+" reports whether ...")
	case vague.MatchString(text):
		return fmt.Sprintf("%q explains nothing, want a noun or an exact verb", vague.FindString(text))
	}
	return ""
}

// docs maps the names of declarations and fields to their comments.
func docs(f *ast.File) map[*ast.Ident]*ast.CommentGroup {
	all := map[*ast.Ident]*ast.CommentGroup{}
	add := func(doc *ast.CommentGroup, names ...*ast.Ident) {
		if doc != nil && len(names) > 0 {
			all[names[0]] = doc
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Doc, n.Name)
		case *ast.Field:
			add(n.Doc, n.Names...)
		case *ast.ValueSpec:
			add(n.Doc, n.Names...)
		case *ast.TypeSpec:
			add(n.Doc, n.Name)
		case *ast.GenDecl:
			if len(n.Specs) == 1 {
				if s, ok := n.Specs[0].(*ast.TypeSpec); ok {
					add(n.Doc, s.Name)
				}
				if s, ok := n.Specs[0].(*ast.ValueSpec); ok {
					add(n.Doc, s.Names...)
				}
			}
		}
		return true
	})
	return all
}

// TestOpening reads openings of comments. Only fragments and vague verbs are mistakes.
func TestOpening(t *testing.T) {
	for text, wrong := range map[string]bool{
		"take takes a zone.":             true,
		"take is what a zone has.":       true,
		"take accepts a zone.":           false,
		"take: this process may take.":   true,
		"take returns a key: its zone.":  false,
		"taken reports whether it held.": false,
	} {
		if got := opening("take", text) != ""; got != wrong {
			t.Errorf("opening(%q) has a mistake = %t, want %t", text, got, wrong)
		}
	}
}
