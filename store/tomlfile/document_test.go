package tomlfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/store/tomlfile"
)

// TestWhere parses the files testdata/where/*.toml. In these files, the comment "# @ PATH" marks
// the line that Where must return for PATH.
func TestWhere(t *testing.T) {
	files, err := filepath.Glob("testdata/where/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("files in testdata/where = 0, error = %v, want at least 1", err)
	}
	at := regexp.MustCompile(`# @ (.*)$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc := parse(t, file, string(text))
		marks := 0
		for i, line := range strings.Split(string(text), "\n") {
			m := at.FindStringSubmatch(strings.TrimSuffix(line, "\r"))
			if m == nil {
				continue
			}
			for _, path := range strings.Split(m[1], "; ") {
				marks++
				if got, want := doc.Where(path), (balancer.Origin{File: file, Line: i + 1}); got != want {
					t.Errorf("Where(%s) = %s:%d, want line %d", path, got.File, got.Line, want.Line)
				}
			}
		}
		if marks == 0 {
			t.Errorf("marks in %s = 0, want at least 1", file)
		}
	}
}

func parse(t testing.TB, file, text string) *tomlfile.Document {
	t.Helper()
	doc, problems := tomlfile.Parse(file, []byte(text))
	if len(problems) > 0 {
		t.Fatalf("%s: problems = %v, want none", file, problems)
	}
	return doc
}

func TestWhatIsMissingIsAtTheNearestThingAround(t *testing.T) {
	doc := parse(t, "f", "mode = 1\n[services.web]\nports = [\n {port = 80},\n]\nhealth.headers.\"X.Y\" = 1\n")
	for path, want := range map[string]int{
		"": 0, "nothing": 0, "nothing.at.all": 0, "mode": 1, "mode.x": 1, "services": 2, "services.web": 2,
		"services.web.vips": 2, "services.web.vips[3]": 2, "services.web.ports[0].name": 4, "services.web.ports[1]": 3,
		"services.web.ports[1].port": 3, "services.dns.ports": 2, `services.web.health.headers."X.Y"`: 6,
		`services.web.health.headers."X.Z"`: 6, `services."web`: 2, "[": 0, ".": 0, "..[": 0,
	} {
		if got := doc.Where(path); got.Line != want {
			t.Errorf("Where(%s) = line %d, want %d", path, got.Line, want)
		}
	}
	under := doc.Under("services.web")
	if got := under("ports[0].port").Line; got != 4 {
		t.Errorf("Under(services.web): line of ports[0].port = %d, want 4", got)
	}
	if got := under("").Line; got != 2 {
		t.Errorf(`Under(services.web): line of "" = %d, want 2`, got)
	}
}

func TestSyntaxErrorsNameTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"mode = \n":                              `f:1: not valid TOML: expected value but found '\n' instead`,
		"a = 1\nb = [1,\n2\nc = 3\n":             `f:4: not valid TOML: expected a comma (',') or array terminator (']'), but got 'c'`,
		"[services.web]\n\n[services.web]\n":     `f:3: not valid TOML: key 'services.web' has already been defined`,
		"a = 1\n\n\na = 2\n":                     `f:4: not valid TOML: key 'a' has already been defined`,
		"[a]\n[services.a2\nb = 1\n":             `f:2: not valid TOML: expected '.' or ']' to end table name, but got '\n' instead`,
		"\xef\xbb\xbf[a]\nb = tru\nc = 1\n":      `f:2: not valid TOML: expected value but found "tru" instead`,
		"a = 0x\n\n":                             `f:1: not valid TOML: not a hexadecimal number: '0x\n'`,
		"vips = [\n 10.96.0.10,\n]\n":            `f:2: not valid TOML: 10.96.0.10 needs quotes: "10.96.0.10"`,
		"a = 1\naddress = fd00::1\n":             `f:2: not valid TOML: fd00::1 needs quotes: "fd00::1"`,
		"nets = [10.0.0.0/8]\n":                  `f:1: not valid TOML: 10.0.0.0/8 needs quotes: "10.0.0.0/8"`,
		"timeout = 30s\n":                        `f:1: not valid TOML: 30s needs quotes: "30s"`,
		"# fine\nname = 'x\n":                    `f:2: not valid TOML: strings cannot contain newlines`,
		"a = 1\nb = 99999999999999999999\nc=1\n": `f:2: not valid TOML: 99999999999999999999 is out of range for int64`,
	} {
		doc, problems := tomlfile.Parse("f", []byte(text))
		if doc != nil || len(problems) != 1 {
			t.Errorf("%q: document = %t, problems = %v; want one problem and no document", text, doc != nil, problems)
			continue
		}
		if got := problems[0].String(); got != want {
			t.Errorf("%q:\n got %s\nwant %s", text, got, want)
		}
	}
}

// FuzzParse parses an arbitrary text. Parse must not panic. The scanner for line numbers must find
// the same keys and list elements as the TOML parser, and Where must return an existing line for
// each of them.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/where/*.toml", "testdata/valid/*.toml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		doc, problems := tomlfile.Parse("f", text)
		if doc == nil {
			if len(problems) != 1 || problems[0].Text == "" {
				t.Fatalf("document = nil, problems = %v, want one problem", problems)
			}
			return
		}
		want := map[string]bool{}
		paths(want, "", doc.Tree())
		if diff := cmp.Diff(want, doc.Paths()); diff != "" {
			t.Fatalf("paths differ between the parser (-) and the scanner (+):\n%s", diff)
		}
		last := strings.Count(string(text), "\n") + 1
		for path := range want {
			if line := doc.Where(path).Line; line < 1 || line > last {
				t.Fatalf("Where(%s) = line %d, want a line from 1 to %d", path, line, last)
			}
			for i := range path {
				doc.Where(path[i:])
			}
		}
	})
}

// paths records in the set into: the path of value, and the paths of everything inside value.
func paths(into map[string]bool, path string, value any) {
	if path != "" {
		into[path] = true
	}
	bare := regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if !bare.MatchString(key) {
				key = strconv.Quote(key)
			}
			paths(into, strings.TrimPrefix(path+"."+key, "."), inner)
		}
	case []any:
		for i, inner := range value {
			paths(into, fmt.Sprintf("%s[%d]", path, i), inner)
		}
	case []map[string]any:
		for i, inner := range value {
			paths(into, fmt.Sprintf("%s[%d]", path, i), inner)
		}
	}
}
