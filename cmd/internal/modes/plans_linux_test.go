package modes_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestIPVSPlansLoad loads each scenario's virtual servers with ipvsadm. The kernel must accept them
// and list the same virtual servers.
func TestIPVSPlansLoad(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "ipvsadm")
	files, err := filepath.Glob(folder + "/*/ipvs.want")
	if err != nil || len(files) == 0 {
		t.Fatalf("scenarios in %s = none, error = %v, want at least one", folder, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			servers, _, _ := strings.Cut(string(text), "# nft") // omit the nftables rules, which mark packets to port ranges
			for line := range strings.Lines(servers) {
				if !strings.HasPrefix(line, "#") {
					want = append(want, strings.TrimSpace(line))
				}
			}
			restore := exec.Command("ipvsadm", "--restore")
			restore.Stdin = strings.NewReader(strings.Join(want, "\n") + "\n")
			if out, err := restore.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("ipvsadm --restore: error = %v, want none and no output; output:\n%s", err, out)
			}
			t.Cleanup(func() { ipvsadm(t, "--clear") })
			for i, line := range want {
				want[i] = unsaved.ReplaceAllString(line, "")
			}
			got := strings.FieldsFunc(ipvsadm(t, "--save", "-n"), func(r rune) bool { return r == '\n' })
			for i, line := range got {
				line = strings.TrimSpace(strings.TrimSuffix(line, " --tun-type ipip")) // ipvsadm adds this default after -i
				got[i] = negative.ReplaceAllStringFunc(line, func(mark string) string {
					n, _ := strconv.ParseInt(strings.TrimPrefix(mark, "-f "), 10, 32)
					return fmt.Sprintf("-f %d", uint32(n))
				})
			}
			slices.Sort(got)
			slices.Sort(want)
			if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("ipvsadm --save (-want +got):\n%s", d)
			}
		})
	}
}

// negative matches the marks that ipvsadm prints as negative numbers.
var negative = regexp.MustCompile(`-f -\d+`)

// unsaved matches the connection thresholds, which ipvsadm --save omits.
var unsaved = regexp.MustCompile(` -x \d+ -y \d+$`)

func ipvsadm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ipvsadm", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ipvsadm %s: %v\n%s", args, err, out)
	}
	return string(out)
}
