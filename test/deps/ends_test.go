package deps

import (
	"go/ast"
	"path"
	"strings"
	"testing"
)

// TestOnlyMainExits looks for calls that exit the program. Only main.go may contain them, so that
// deferred calls run and tests can start the daemon.
func TestOnlyMainExits(t *testing.T) {
	set, files := readTree(t)
	for _, f := range files {
		if f.test || within("test", f.folder()) || path.Base(f.path) == "main.go" && f.syntax.Name.Name == "main" {
			continue // test kits may exit test programs, like a TestMain
		}
		for _, call := range endings(f.syntax) {
			t.Errorf("%s calls %s: return an error instead; only main.go sets an exit code", set.Position(call.Pos()), call.Sel.Name)
		}
	}
}

// endings finds os.Exit, log.Fatal and similar calls.
func endings(syntax *ast.File) []*ast.SelectorExpr {
	var found []*ast.SelectorExpr
	ast.Inspect(syntax, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := s.X.(*ast.Ident)
		if ok && (pkg.Name == "os" && s.Sel.Name == "Exit" || pkg.Name == "log" && strings.HasPrefix(s.Sel.Name, "Fatal") ||
			pkg.Name == "cli" && s.Sel.Name == "Exit" || pkg.Name == "runtime" && s.Sel.Name == "Goexit") {
			found = append(found, s)
		}
		return true
	})
	return found
}

// TestNoGlobalState looks for functions that run at import time, and for package variables. Two
// daemons in one test must not share state. Values that the linker sets (version) or the compiler
// embeds are not state.
func TestNoGlobalState(t *testing.T) {
	set, files := readTree(t)
	for _, f := range files {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: init runs at import and can't return an error; use a function", set.Position(fn.Pos()))
			}
			if vars, ok := d.(*ast.GenDecl); ok && vars.Tok.String() == "var" && !f.test && vars.Doc.Text() == "" {
				reportVariables(t, vars, func(n ast.Node) string { return set.Position(n.Pos()).String() })
			}
		}
	}
}

// reportVariables reports package variables that are probably accidental state. It accepts errors,
// assertions (var _ T = ...), and variables with a comment.
func reportVariables(t *testing.T, vars *ast.GenDecl, at func(ast.Node) string) {
	t.Helper()
	for _, s := range vars.Specs {
		spec := s.(*ast.ValueSpec)
		for i, name := range spec.Names {
			if name.Name == "_" || spec.Doc.Text() != "" || i < len(spec.Values) && isError(spec.Values[i]) {
				continue
			}
			t.Errorf("%s: the package variable %s lacks a comment that explains why two daemons may share it",
				at(name), name.Name)
		}
	}
}

// isError reports whether the value is errors.New(...) or fmt.Errorf(...).
func isError(value ast.Expr) bool {
	call, ok := value.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (f.Sel.Name == "New" || f.Sel.Name == "Errorf")
}
