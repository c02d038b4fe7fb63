package deps

import (
	"go/ast"
	"path"
	"testing"
)

// TestDataplaneWrappersUnwrap looks for structs that embed a dataplane.Dataplane. Each must have a
// method Unwrap, because otherwise dataplane.As does not find the optional interfaces of the inner
// dataplane.
func TestDataplaneWrappersUnwrap(t *testing.T) {
	set, files := readTree(t)
	unwraps := map[string]bool{} // key: folder and type
	for _, f := range files {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil && fn.Name.Name == "Unwrap" {
				unwraps[path.Join(f.folder(), nameOf(fn.Recv.List[0].Type))] = true
			}
		}
	}
	wrappers := 0
	for _, f := range files {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !embedsDataplane(f, spec.Type) {
				return true
			}
			wrappers++
			if !unwraps[path.Join(f.folder(), spec.Name.Name)] {
				t.Errorf("%s: %s embeds a Dataplane, but lacks the method Unwrap", set.Position(spec.Pos()), spec.Name.Name)
			}
			return true
		})
	}
	if wrappers == 0 {
		t.Error("number of wrappers = 0, want at least the wrappers of tests")
	}
}

// embedsDataplane reports whether a type is a struct that embeds the interface.
func embedsDataplane(f file, of ast.Expr) bool {
	s, ok := of.(*ast.StructType)
	if !ok {
		return false
	}
	for _, field := range s.Fields.List {
		if len(field.Names) > 0 {
			continue
		}
		switch e := field.Type.(type) {
		case *ast.SelectorExpr:
			if pkg, ok := e.X.(*ast.Ident); ok && pkg.Name == "dataplane" && e.Sel.Name == "Dataplane" {
				return true
			}
		case *ast.Ident:
			if f.folder() == "dataplane" && f.syntax.Name.Name == "dataplane" && e.Name == "Dataplane" {
				return true
			}
		}
	}
	return false
}

// nameOf returns the name of a receiver's type.
func nameOf(e ast.Expr) string {
	if p, ok := e.(*ast.StarExpr); ok {
		e = p.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
