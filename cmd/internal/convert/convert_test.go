package convert

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/store"
	"vipd/store/tomlfile"
	"vipd/test/wait"
)

var update = flag.Bool("update", false, "write the outputs of testdata")

// TestConfigurations converts the configurations in testdata. Each output must equal the .toml file
// next to its configuration. The first line of a configuration may list VIPs for wildcards, as in
// "# --vip 10.5.0.1".
func TestConfigurations(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.conf")
	if err != nil || len(files) < 90 {
		t.Fatalf("configurations = %d, error = %v, want at least 90", len(files), err)
	}
	for _, file := range files {
		format := filepath.Base(filepath.Dir(file))
		t.Run(format+"/"+filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var o Options
			if flags, given := strings.CutPrefix(strings.SplitN(string(text), "\n", 2)[0], "# --vip "); given {
				for _, word := range strings.Split(flags, " --vip ") {
					o.VIPs = append(o.VIPs, netip.MustParseAddr(word))
				}
			}
			result, err := Convert(format, "standard input", text, o)
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".conf") + ".toml"
			if *update {
				if err := os.WriteFile(golden, []byte(result.TOML), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), result.TOML); d != "" {
				t.Errorf("output (-want +got):\n%s", d)
			}
			for _, p := range problemsOf(result) {
				t.Errorf("problem = %s, want none", p)
			}
		})
	}
}

// TestRandomDamage converts randomly damaged configurations from testdata. The result must be an
// error that names the line, or TOML whose services vipd accepts.
func TestRandomDamage(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.conf")
	if err != nil || len(files) == 0 {
		t.Fatalf("configurations = %d, error = %v, want at least one", len(files), err)
	}
	var texts [][]byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	options := Options{VIPs: []netip.Addr{netip.MustParseAddr("10.5.0.1"), netip.MustParseAddr("2001:db8::1")}}
	for seed := range uint64(wait.Soak(12, 1500)) {
		r := rand.New(rand.NewPCG(seed, 1))
		for i, file := range files {
			format := filepath.Base(filepath.Dir(file))
			text := damaged(r, texts[i], texts[r.IntN(len(texts))])
			result, err := Convert(format, "origin", text, options)
			placed, ok := errors.AsType[*Error](err)
			if err != nil && (!ok || placed.Line < 1 || placed.Text == "") {
				t.Errorf("seed %d, %s: error = %v, want an error that names the line\n%s", seed, file, err, text)
			}
			if err == nil {
				for _, p := range problemsOf(result) {
					t.Errorf("seed %d, %s: problem = %s, want none\n%s\n%s", seed, file, p, text, result.TOML)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
}

// damaged returns text with random edits. Some edits insert parts of other.
func damaged(r *rand.Rand, text, other []byte) []byte {
	out := slices.Clone(text)
	for range 1 + r.IntN(4) {
		at := r.IntN(len(out) + 1)
		end := min(len(out), at+r.IntN(30))
		from := r.IntN(len(other))
		piece := other[from:min(len(other), from+r.IntN(60))]
		odd := []string{"{", "}", "\"", "'", ";", "\n", "\\", "$", "-", "0", "99999999999999999999", ":", "[", "\x00", "\xff", " ", "é", "::"}
		switch r.IntN(4) {
		case 0:
			out = slices.Delete(out, at, end)
		case 1:
			out = slices.Insert(out, at, piece...)
		case 2:
			out = slices.Insert(out, at, []byte(odd[r.IntN(len(odd))])...)
		case 3:
			lines := strings.SplitAfter(string(out), "\n")
			i, j := r.IntN(len(lines)), r.IntN(len(lines))
			lines[i], lines[j] = lines[j], lines[i]
			out = []byte(strings.Join(lines, ""))
		}
	}
	return out
}

// enabled returns text with its disabled services uncommented.
func enabled(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		code, isComment := strings.CutPrefix(line, "#")
		isElement := strings.HasPrefix(code, "  ") && !strings.HasPrefix(code, "   ")
		if isComment && (isElement || !strings.HasPrefix(code, " ")) {
			line = code
		}
		b.WriteString(line)
	}
	return b.String()
}

// ownershipProblems returns the errors that vipd finds in the VRRP groups and their VIPs. A wrong
// group count in result is also an error.
func ownershipProblems(doc store.Document, result *Result) (problems []balancer.Problem) {
	c, found := config.Decode(doc)
	var vips snap.Map[netip.Addr, *balancer.VIP]
	tables, _ := doc.Tree()["vips"].(map[string]any)
	for name, fields := range tables {
		v, bad := balancer.DecodeVIP(name, fields.(map[string]any), nil, balancer.SeverityError)
		if found = append(found, bad...); v != nil {
			vips = vips.Set(v.Addr, v)
		}
	}
	groups, bad := c.VRRPGroups(vips)
	for _, p := range append(found, bad...) {
		if p.Severity == balancer.SeverityError {
			problems = append(problems, p)
		}
	}
	if len(groups) != result.Groups {
		problems = append(problems, balancer.Problem{Text: fmt.Sprintf("%d groups, want %d", len(groups), result.Groups)})
	}
	return problems
}

// problemsOf returns the errors that vipd finds in the output, and an error if the counts in result
// are wrong. The output must also be valid TOML if its disabled services are uncommented.
func problemsOf(result *Result) []balancer.Problem {
	doc, problems := tomlfile.Parse("converted", []byte(result.TOML))
	if doc == nil {
		return problems
	}
	all, problems := tomlfile.Parse("enabled", []byte(enabled(result.TOML)))
	if all == nil {
		return problems
	}
	problems = append(problems, ownershipProblems(doc, result)...)
	services, _ := doc.Tree()["services"].(map[string]any)
	allServices, _ := all.Tree()["services"].(map[string]any)
	if len(services) != result.Services || len(allServices) != result.Services+result.Disabled {
		return []balancer.Problem{{Text: fmt.Sprintf("%d of %d services, want %d and %d commented out", len(services), len(allServices), result.Services, result.Disabled)}}
	}
	claims := map[balancer.Key]bool{}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		fields, _ := services[name].(map[string]any)
		s, found := balancer.DecodeService(balancer.Name(name), fields, nil, nil, balancer.SeverityError)
		for _, p := range found {
			if p.Severity == balancer.SeverityError {
				problems = append(problems, p)
			}
		}
		for key := range s.Claims() {
			if claims[key] {
				problems = append(problems, balancer.Problem{Service: balancer.Name(name), Text: key.String() + " is claimed twice"})
			}
			claims[key] = true
		}
	}
	return problems
}
