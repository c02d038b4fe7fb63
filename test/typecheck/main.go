package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	systems, programs, ok := cut(os.Args[1:])
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: typecheck SYSTEM... -- PACKAGE...")
		os.Exit(2)
	}
	for _, system := range systems {
		if err := check(system, programs); err != nil {
			fmt.Fprintf(os.Stderr, "typecheck: %s: %v\n", system, err)
			os.Exit(1)
		}
	}
}

// cut splits the arguments at "--".
func cut(args []string) (systems, programs []string, ok bool) {
	i := slices.Index(args, "--")
	if i < 1 || i == len(args)-1 {
		return nil, nil, false
	}
	return args[:i], args[i+1:], true
}

// listed is a package in go list's form.
type listed struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Main bool }
}

// check type-checks packages and their imports for a system.
func check(system string, patterns []string) error {
	cmd := exec.Command("go", slices.Concat([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module"}, patterns)...)
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("listing the packages: %w", err)
	}
	c := checker{files: token.NewFileSet(), checked: map[string]*types.Package{"unsafe": types.Unsafe}}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			return errors.Join(c.errs...)
		} else if err != nil {
			return fmt.Errorf("reading what go list prints: %w", err)
		}
		if p.ImportPath != "unsafe" {
			c.add(p)
		}
	}
}

// checker type-checks packages in go list's order: imported packages come first.
type checker struct {
	files   *token.FileSet
	checked map[string]*types.Package
	errs    []error
}

func (c *checker) add(p listed) {
	ours := p.Module != nil && p.Module.Main
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(c.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			c.errs = append(c.errs, err)
		}
		files = append(files, f)
	}
	conf := types.Config{
		Importer: imports{c, p.ImportMap}, IgnoreFuncBodies: !ours, FakeImportC: true, Sizes: types.SizesFor("gc", "amd64"),
		Error: func(err error) {
			if ours { // errors in other packages only matter where this tree uses them
				c.errs = append(c.errs, err)
			}
		},
	}
	c.checked[p.ImportPath], _ = conf.Check(p.ImportPath, c.files, files, nil) // Error has the errors
}

// imports resolves the imports of a package; map has the paths of vendored packages.
type imports struct {
	*checker
	paths map[string]string
}

func (i imports) Import(path string) (*types.Package, error) {
	if mapped, ok := i.paths[path]; ok {
		path = mapped
	}
	if p := i.checked[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed", path)
}
