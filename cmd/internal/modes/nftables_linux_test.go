package modes_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vipd/test/lab"
)

// TestNFTablesPlansLoad loads each scenario's rules with nft. nft must accept the rules, and also
// its own listing of them.
func TestNFTablesPlansLoad(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	files, err := filepath.Glob(folder + "/*/nftables.want")
	if err != nil || len(files) == 0 {
		t.Fatalf("scenarios in %s = none, error = %v, want at least one", folder, err)
	}
	nft := func(t *testing.T, input string, args ...string) string {
		t.Helper()
		cmd := exec.Command("nft", args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nft(t, "", "flush", "ruleset") })
			nft(t, string(text), "-c", "-f", "-")
			nft(t, string(text), "-f", "-")
			nft(t, "flush ruleset\n"+nft(t, "", "list", "ruleset"), "-f", "-")
		})
	}
}
