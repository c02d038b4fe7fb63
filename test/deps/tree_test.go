package deps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// file is one Go file of the tree, for whichever system it is.
type file struct {
	path    string // from the top of the tree, with slashes
	test    bool
	syntax  *ast.File
	imports []string
}

// folder is the file's folder from the top of the tree; for package vipd/a/b it is a/b.
func (f file) folder() string { return path.Dir(f.path) }

// readTree parses every Go file of the module, generated and foreign ones as well: there are none to spare.
func readTree(t *testing.T) (*token.FileSet, []file) {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(top, "go.mod")); err != nil {
		t.Fatalf("the top of the tree is not where it was: %v", err)
	}
	set := token.NewFileSet()
	var files []file
	err = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != top && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || slices.Contains([]string{"testdata", "bin", "build"}, name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(set, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(rel), test: strings.HasSuffix(name, "_test.go"), syntax: syntax}
		for _, i := range syntax.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, imported)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("read only %d files: the walk misses the tree", len(files))
	}
	return set, files
}

// within says whether a path is the folder or below it; "" is the whole tree.
func within(folder, p string) bool {
	return folder == "" || p == folder || strings.HasPrefix(p, folder+"/")
}
