package deps

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// ban forbids imports. Its fields name folders in the tree, or modules.
type ban struct {
	// from is the importing folder; "" is the whole tree.
	from string
	// but lists the exceptions: folders within from to which the ban does not apply.
	but []string
	// what is the forbidden folder or module.
	what string
	// tests reports whether the ban also applies to _test.go files.
	tests bool
	why   string
}

// bans lists the tree's forbidden import directions. Package balancer is at the bottom, store
// and dataplane are above it and don't import each other, and cmd is at the top.
func bans() []ban {
	return []ban{
		{from: "balancer", what: "vipd/store", tests: true, why: "the model is below its sources"},
		{from: "balancer", what: "vipd/dataplane", tests: true, why: "the model is below what carries it out"},
		{from: "balancer", what: "vipd/cmd", tests: true, why: "nothing imports the programs"},
		{from: "store", what: "vipd/dataplane", tests: true,
			why: "a source publishes what users wrote; what becomes of it is none of its business"},
		{from: "store", what: "vipd/cmd", tests: true, why: "nothing imports the programs"},
		{from: "dataplane", what: "vipd/store", tests: true,
			why: "a dataplane sees compiled frontends only; with a store in reach it would look at raw endpoints"},
		{from: "dataplane", what: "vipd/cmd", tests: true, why: "nothing imports the programs"},
		{from: "", but: []string{"cmd", "dataplane/probe", "dataplane/resolve"}, what: "vipd/dataplane/probe",
			why: "only the programs check endpoints; a mode receives the verdicts in its frontends"},
		{from: "balancer", but: []string{"balancer/lib"}, what: "vipd/balancer/lib",
			why: "lib holds small packages for the floors above; the model needs neither files nor sockets"},
		{from: "cmd/vipctl", what: "vipd/cmd/vipd/daemon",
			why: "vipctl asks a running daemon through cmd/internal/api; a second way to its state would give other answers"},
		{from: "cmd/vipd/daemon/internal", but: []string{"cmd/vipd/daemon/internal/status", "cmd/vipd/daemon/internal/fleet",
			"cmd/vipd/daemon/internal/apiserver", "cmd/vipd/daemon/internal/web", "cmd/vipd/daemon/internal/metrics"},
			what: "vipd/cmd/vipd/daemon/internal/status", why: "nobody decides by what is shown"},
		{from: "cmd/vipd/daemon/internal/modeswitch", what: "vipd/cmd/vipd/daemon/internal/model",
			why: "the mode is chosen by the configuration alone, whatever is compiled"},
		{from: "cmd/vipd", what: "vipd/cmd/vipctl", why: "the daemon does not know its clients"},
		{from: "examples", what: "vipd", but: nil, why: "the examples use the programs as a user does, from outside"},

		{from: "", but: []string{"cmd"}, what: "github.com/urfave/cli", tests: true, why: "command lines belong to the programs"},
		{from: "", but: []string{"cmd"}, what: "github.com/prometheus", tests: true,
			why: "packages declare small metrics interfaces; the exposition is the daemon's"},
		{from: "", but: []string{"cmd/internal/tracing"}, what: "go.opentelemetry.io/otel",
			why: "model and engine note when they did what; traces are made of that in one place"},
		{from: "", but: []string{"cmd/vipctl"}, what: "charm.land", why: "screens are vipctl's"},
		{from: "", but: []string{"cmd"}, what: "github.com/coreos/go-systemd", tests: true, why: "talking to the service manager is the daemon's"},
		{from: "", but: []string{"dataplane/resolve", "test/dnskit"}, what: "github.com/miekg/dns", tests: true,
			why: "only resolve looks names up; checks of DNS servers write their question with golang.org/x/net"},
		{from: "", but: []string{"store/etcd", "cmd", "test/etcdkit"}, what: "go.etcd.io", why: "etcd is known to its source alone"},
		{from: "", but: []string{"store/tomlfile", "balancer", "cmd"}, what: "github.com/BurntSushi/toml", tests: true,
			why: "files are read in one place, which finds line numbers that the library does not"},
		{from: "", what: "github.com/sirupsen/logrus", tests: true, why: "logging is log/slog, injected"},
		{from: "", what: "log", tests: true, why: "logging is log/slog, injected"},
		{from: "", what: "io/ioutil", tests: true, why: "os and io have it all"},
		{from: "", but: []string{"examples", "test", "dataplane/dataplanetest", "dataplane/internal/ipvsnl/ipvsnltest", "store/storetest"}, what: "testing",
			why: "test kits are packages of their own"},
		{from: "", but: kits(), what: "vipd/test/fake", why: "a program must not carry out its traffic in memory"},
		{from: "", but: kits(), what: "vipd/dataplane/dataplanetest", why: "test kits stay out of the programs"},
		{from: "", but: kits(), what: "vipd/store/storetest", why: "test kits stay out of the programs"},
		{from: "", but: kits(), what: "vipd/test", why: "test kits stay out of the programs"},
	}
}

// kits returns the packages that exist for tests. These packages may import each other.
func kits() []string {
	return []string{"test", "dataplane/dataplanetest", "dataplane/internal/ipvsnl/ipvsnltest", "store/storetest"}
}

// names reports whether the ban forbids an import. A folder or module includes everything below it;
// a package of the standard library does not (log is not log/slog).
func (b ban) names(imported string) bool {
	if b.standard() {
		return imported == b.what
	}
	return within(b.what, imported)
}

func (b ban) standard() bool {
	first, _, _ := strings.Cut(b.what, "/")
	return first != "vipd" && !strings.Contains(first, ".")
}

func (b ban) covers(f file, imported string) bool {
	if f.test && !b.tests || !within(b.from, f.folder()) || !b.names(imported) {
		return false
	}
	if b.from == "examples" && within("vipd/examples", imported) {
		return false
	}
	return !slices.ContainsFunc(b.but, func(part string) bool { return within(part, f.folder()) })
}

// TestImportDirections checks every import of the tree against the bans.
func TestImportDirections(t *testing.T) {
	_, files := readTree(t)
	for _, f := range files {
		for _, imported := range f.imports {
			for _, b := range bans() {
				if b.covers(f, imported) {
					t.Errorf("%s imports %s: %s", f.path, imported, b.why)
				}
			}
		}
	}
}

// TestModesImportNoMode reads the modes' imports. No mode may import another mode, because shared
// code is in dataplane/internal or in the guard. The modes are the packages of dataplane that
// cmd/internal/modes imports, except the host and the guard.
func TestModesImportNoMode(t *testing.T) {
	_, files := readTree(t)
	modes := map[string]bool{}
	for _, f := range files {
		for _, imported := range f.imports {
			if folder, ok := strings.CutPrefix(imported, "vipd/dataplane/"); ok && !f.test && f.folder() == "cmd/internal/modes" && folder != "host" && folder != "guard" {
				modes[folder] = true
			}
		}
	}
	if len(modes) < 2 {
		t.Fatalf("imports of cmd/internal/modes = %v, want at least two modes", modes)
	}
	for _, f := range files {
		mine, ok := strings.CutPrefix(f.folder(), "dataplane/")
		if !ok || !modes[mine] || f.test {
			continue
		}
		for _, imported := range f.imports {
			if other := strings.TrimPrefix(imported, "vipd/dataplane/"); other != mine && modes[other] {
				t.Errorf("%s imports %s: modes share code in dataplane/internal, and never import each other", f.path, imported)
			}
		}
	}
}

// TestPartsOfEtcd checks the imports below store/etcd. Decoding must not depend on the client, the
// client must not depend on its users, and the users must not depend on each other.
func TestPartsOfEtcd(t *testing.T) {
	const parent = "vipd/store/etcd/"
	askers := []string{"schema", "client"}
	may := map[string][]string{"schema": nil, "client": {"schema"}, "watch": askers, "definitions": askers, "fleet": askers, "owners": askers}
	_, files := readTree(t)
	for _, f := range files {
		part, ok := strings.CutPrefix(f.folder(), "store/etcd/")
		if !ok || f.test {
			continue
		}
		allowed, known := may[part]
		if !known {
			t.Errorf("%s: no rule exists for this package: in this test, list the packages that it may import", f.path)
		}
		for _, imported := range f.imports {
			if other, ok := strings.CutPrefix(imported, parent); imported+"/" == parent || ok && !slices.Contains(allowed, other) {
				t.Errorf("%s imports %s: it may import only these siblings: %q", f.path, imported, allowed)
			}
		}
	}
}

// TestErrorsOfSockets reads code that runs on Windows. This code must check socket errors with
// package sockerr, which knows Windows's error numbers.
func TestErrorsOfSockets(t *testing.T) {
	set, files := readTree(t)
	for _, f := range files {
		anywhere := within("balancer", f.folder()) || within("dataplane/userspace", f.folder()) || within("cmd", f.folder())
		if !anywhere || f.test || strings.HasSuffix(f.path, "_linux.go") || strings.HasSuffix(f.path, "_unix.go") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 2 || types.ExprString(call.Fun) != "errors.Is" {
				return true
			}
			if text := types.ExprString(call.Args[1]); strings.HasPrefix(text, "syscall.E") {
				t.Errorf("%s: errors.Is does not match %s on Windows; use sockerr.Is", set.Position(n.Pos()), text)
			}
			return true
		})
	}
}

// TestModelImportsStandardLibraryOnly reads balancer's imports. A program that embeds the balancer
// must get no dependency, and results must depend only on arguments. The packages of balancer/lib
// serve other layers and may do I/O.
func TestModelImportsStandardLibraryOnly(t *testing.T) {
	_, files := readTree(t)
	for _, f := range files {
		if !within("balancer", f.folder()) || f.test {
			continue
		}
		for _, imported := range f.imports {
			first, _, _ := strings.Cut(imported, "/")
			if strings.Contains(first, ".") || first == "vipd" && !within("vipd/balancer", imported) {
				t.Errorf("%s imports %s: the model imports the standard library and itself", f.path, imported)
			}
			if !within("balancer/lib", f.folder()) && slices.Contains([]string{"os", "net", "net/http", "os/exec", "syscall"}, imported) {
				t.Errorf("%s imports %s: the model does no I/O", f.path, imported)
			}
		}
	}
}

// TestBansApply checks each ban with an invented import. The ban must forbid it, except in the
// folders that the ban's field "but" lists.
func TestBansApply(t *testing.T) {
	for _, b := range bans() {
		from := b.from
		if from == "" {
			from = "dataplane/example"
		}
		if f := (file{path: from + "/x.go"}); !b.covers(f, b.what) || !b.covers(file{path: from + "/below/x.go"}, b.what) ||
			b.covers(f, b.what+"/below") == b.standard() {
			t.Errorf("a file in %s may import %s, despite: %s", from, b.what, b.why)
		}
		for _, part := range b.but {
			if f := (file{path: part + "/x.go"}); b.covers(f, b.what) {
				t.Errorf("%s may not import %s, although it is an exception of: %s", part, b.what, b.why)
			}
		}
		if f := (file{path: from + "/x.go"}); b.covers(f, b.what+"other") {
			t.Errorf("the ban of %[2]s covers %[1]s, want a ban of only the folder and everything below it", b.what+"other", b.what)
		}
		if b.why == "" {
			t.Errorf("the ban of %s has no reason", b.what)
		}
	}
}

// TestFolderNames reads the names of all folders. A name must describe the folder's content.
func TestFolderNames(t *testing.T) {
	_, files := readTree(t)
	for _, f := range files {
		for _, part := range strings.Split(f.folder(), "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "misc", "shared"}, part) {
				t.Errorf("%s: a folder named %s does not describe its content", f.path, part)
			}
		}
	}
}

// TestEveryPackageHasDoc reads all folders. Each must have a doc.go with a package comment.
func TestEveryPackageHasDoc(t *testing.T) {
	_, files := readTree(t)
	documented := map[string]string{}
	for _, f := range files {
		if _, ok := documented[f.folder()]; !ok {
			documented[f.folder()] = fmt.Sprintf("has no doc.go (there is %s)", f.path)
		}
	}
	for _, f := range files {
		if strings.HasSuffix(f.path, "/doc.go") {
			documented[f.folder()] = ""
			if f.syntax.Doc == nil {
				documented[f.folder()] = "has a doc.go without a package comment"
			}
		}
	}
	for folder, wrong := range documented {
		if wrong != "" {
			t.Errorf("%s %s", folder, wrong)
		}
	}
}
