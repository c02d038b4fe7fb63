package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"vipd/test/guest/vm"
	"vipd/test/ipvs"
)

// ipvsTests is a pattern that matches the names of tests that need IPVS. lab.NeedIPVS enforces it.
const ipvsTests = "^TestIPVS"

// plan lists the packages that run here and in the guest.
type plan struct {
	// flags and packages are the arguments of go test. Without packages, go test does not run.
	flags, packages []string
	// again makes a few failing tests run again, each alone.
	again bool
	// here reports whether go test runs on this machine.
	here bool
	// guest has the packages whose tests that need IPVS run in a guest.
	guest []pkg
	// note describes how the tests that need IPVS are run.
	note string
}

// pkg is a package in go list's form.
type pkg struct {
	path, folder string
	imports      []string // including imports of its tests
	tests        []string // the test files
}

// newPlan reads the command line and examines this machine.
func newPlan(args []string) (plan, error) {
	var p plan
	var patterns []string
	var kernelOnly, ipvsOnly bool
	for _, a := range args {
		switch {
		case a == "-kernel":
			kernelOnly = true
		case a == "-ipvs":
			ipvsOnly = true
		case a == "-again":
			p.again = true
		case strings.HasPrefix(a, "-"):
			p.flags = append(p.flags, a)
		default:
			patterns = append(patterns, a)
		}
	}
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	all, err := list(patterns)
	if err != nil {
		return p, err
	}
	needing, err := needingIPVS(all)
	if err != nil {
		return p, err
	}
	switch {
	case ipvsOnly:
		all = needing
	case kernelOnly:
		all = slices.DeleteFunc(all, func(k pkg) bool {
			return k.path != "vipd/test/lab" && !slices.Contains(k.imports, "vipd/test/lab")
		})
	}
	p.packages = longestFirst(paths(all))
	p.here = true
	if len(needing) > 0 {
		p.place(needing, ipvsOnly, findIPVS(), vm.Missing())
	}
	return p, nil
}

// longestFirst moves packages whose tests take minutes to the front. go test starts packages in
// this order, so the run does not end with a long wait for one of these packages.
func longestFirst(packages []string) []string {
	long := []string{
		"vipd/dataplane/iptables", "vipd/cmd/vipd/daemon", "vipd/cmd/vipctl", "vipd/dataplane/userspace", "vipd/cmd/vipd", "vipd/cmd/vipd/owner",
		"vipd/test/examples", "vipd/dataplane/host", "vipd/store/etcd", "vipd/dataplane/nftables", "vipd/test/fleet", "vipd/test/bench/kernel",
		"vipd/store/tomlfile", "vipd/cmd/vipd/daemon/internal/fleetchecks", "vipd/dataplane/dataplanetest", "vipd/dataplane/probe", "vipd/test/guest/vm",
	}
	place := func(path string) int {
		if i := slices.Index(long, path); i >= 0 {
			return i
		}
		return len(long)
	}
	slices.SortStableFunc(packages, func(a, b string) int { return place(a) - place(b) })
	return packages
}

// findIPVS returns why tests that need IPVS can't run on this machine, or nil.
func findIPVS() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the tests do not run as root")
	}
	return ipvs.Load()
}

// place decides where the tests that need IPVS run. noIPVS is the reason why they can't run here,
// and noGuest why they can't run in a guest.
func (p *plan) place(needing []pkg, only bool, noIPVS, noGuest error) {
	if only && flagOf(p.flags, "run") == "" {
		p.flags = append(p.flags, "-run="+ipvsTests)
	}
	switch {
	case noIPVS == nil:
		p.note = "IPVS: this kernel has it; its tests run here"
	case noGuest == nil:
		p.note = fmt.Sprintf("IPVS: its tests run in a guest, because here is none (%v)", noIPVS)
		p.guest = needing
		p.here = !only
		p.flags = append(p.flags, "-skip="+ipvsTests)
	default:
		p.note = fmt.Sprintf("IPVS: its tests are skipped; here is none (%v), and %v", noIPVS, noGuest)
	}
}

// list runs go list, and returns the packages that match the patterns.
func list(patterns []string) ([]pkg, error) {
	const form = "{{.ImportPath}}\t{{.Dir}}\t{{join .Imports \" \"}} {{join .TestImports \" \"}} {{join .XTestImports \" \"}}\t" +
		"{{join .TestGoFiles \" \"}} {{join .XTestGoFiles \" \"}}"
	cmd := exec.Command("go", slices.Concat([]string{"list", "-e", "-f", form}, patterns)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w", err)
	}
	var all []pkg
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("go list prints %q", line)
		}
		all = append(all, pkg{fields[0], fields[1], strings.Fields(fields[2]), strings.Fields(fields[3])})
	}
	return all, nil
}

// needingIPVS returns the packages with a test that matches ipvsTests.
func needingIPVS(all []pkg) ([]pkg, error) {
	var needing []pkg
	for _, k := range all {
		for _, file := range k.tests {
			text, err := os.ReadFile(filepath.Join(k.folder, file))
			if err != nil {
				return nil, err
			}
			if bytes.Contains(text, []byte("\nfunc "+strings.TrimPrefix(ipvsTests, "^"))) {
				needing = append(needing, k)
				break
			}
		}
	}
	return needing, nil
}

func paths(packages []pkg) []string {
	var all []string
	for _, k := range packages {
		all = append(all, k.path)
	}
	return all
}
