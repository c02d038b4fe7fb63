package deps

import (
	"fmt"
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
	"sync"
	"testing"
)

// file is a Go file in the tree, for any system.
type file struct {
	path    string // relative to the top of the tree, with slashes
	test    bool
	syntax  *ast.File
	imports []string
}

// folder returns the file's folder, relative to the top of the tree. For package vipd/a/b it is
// a/b.
func (f file) folder() string { return path.Dir(f.path) }

// tree has every Go file in the module.
type tree struct {
	set   *token.FileSet
	files []file
}

// readTree parses the tree once for all tests. Tests must not change the result.
func readTree(t *testing.T) (*token.FileSet, []file) {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all.files) < 20 {
		t.Fatalf("files in the tree = %d, want more", len(all.files))
	}
	return all.set, all.files
}

var parsed = sync.OnceValues(parse)

func parse() (all tree, err error) {
	top, err := filepath.Abs("../..")
	if err != nil {
		return all, err
	}
	if _, err := os.Stat(filepath.Join(top, "go.mod")); err != nil {
		return all, fmt.Errorf("finding the top of the tree: %w", err)
	}
	all.set = token.NewFileSet()
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
		syntax, err := parser.ParseFile(all.set, p, nil, parser.ParseComments|parser.SkipObjectResolution)
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
		all.files = append(all.files, f)
		return nil
	})
	return all, err
}

// within reports whether a path is the folder or below it. The folder "" contains all paths.
func within(folder, p string) bool {
	return folder == "" || p == folder || strings.HasPrefix(p, folder+"/")
}
