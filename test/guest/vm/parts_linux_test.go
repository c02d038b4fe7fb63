package vm

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseDepends(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"Debian 12": {"Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\nSize: 1\n", "linux-image-6.1.0-56-amd64_6.1.192-2"},
		"others":    {"Depends: kmod, linux-image-6.12.9+deb13-amd64 (= 6.12.9-1), x (>= 2)\n", "linux-image-6.12.9+deb13-amd64_6.12.9-1"},
		"none":      {"Package: linux-image-amd64\nDepends: linux-image-generic\n", ""},
		"empty":     {"", ""},
	} {
		if got, err := parseDepends(c.text); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: dependencies = %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func TestIsDebian(t *testing.T) {
	for text, want := range map[string]bool{
		"NAME=\"Debian GNU/Linux\"\nID=debian\n":               true,
		"ID=devuan\nID_LIKE=debian\n":                          true,
		"ID=ubuntu\nID_LIKE=debian\n":                          false,
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n":            false,
		"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n":       false,
		"HOME_URL=\"https://www.debian.org/\"\nID=somewhere\n": false,
		"": false,
	} {
		if got := isDebian(text); got != want {
			t.Errorf("isDebian(%q) = %t, want %t", text, got, want)
		}
	}
}

func TestClosureLoadsWhatIsNeededFirst(t *testing.T) {
	k := kernel{t.TempDir(), "6.1"}
	if err := os.MkdirAll(k.modules(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"modules.dep": "kernel/net/9p/9pnet.ko.xz:\nkernel/fs/9p/9p.ko.xz: kernel/fs/netfs/netfs.ko.xz kernel/net/9p/9pnet.ko.xz\n" +
			"kernel/fs/netfs/netfs.ko.xz:\nkernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz\nkernel/a-b.ko:\n",
		"modules.builtin": "kernel/drivers/virtio/virtio_pci.ko\n",
	} {
		if err := os.WriteFile(filepath.Join(k.modules(), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"kernel/net/9p/9pnet.ko.xz", "kernel/net/9p/9pnet_virtio.ko.xz", "kernel/fs/netfs/netfs.ko.xz", "kernel/fs/9p/9p.ko.xz", "kernel/a-b.ko"}
	got, err := k.closure("virtio_pci", "9pnet_virtio", "9p", "a_b")
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("closure = %q, %v, want %q", got, err, want)
	}
	if got, err := k.closure("9p", "dummy"); err == nil {
		t.Errorf("closure of a missing module = %q, want an error", got)
	}
}

// TestQuoteIsWhatTheShellReads quotes random words. A shell must read the same words.
func TestQuoteIsWhatTheShellReads(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	const letters = "ab '\"\\$`!*?~#&;|<>(){}[]=\n\t-é"
	var words []string
	script := "printf '%s\\0'"
	for range 200 {
		var word strings.Builder
		for range r.IntN(12) {
			word.WriteRune([]rune(letters)[r.IntN(len([]rune(letters)))])
		}
		words = append(words, word.String())
		script += " " + quote(word.String())
	}
	out, err := exec.Command("bash", "-c", script).Output()
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, words) {
		t.Errorf("seed %d: words read by the shell = %q (%v), want %q", seed, got, err, words)
	}
}

func TestTheTrialOfKVMIsRememberedUntilTheNextBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kvm")
	if _, ok := recall(path, "boot 1\n"); ok {
		t.Error("recall before the first trial = true, want false")
	}
	for _, want := range []bool{true, false} {
		remember(path, "boot 1\n", want)
		if got, ok := recall(path, "boot 1\n"); !ok || got != want {
			t.Errorf("recall = %t, %t, want %t", got, ok, want)
		}
		if _, ok := recall(path, "boot 2\n"); ok {
			t.Error("recall after another boot = true, want false")
		}
	}
	if err := os.WriteFile(path, []byte("boot 1\nwor"), 0o600); err != nil { // cut off
		t.Fatal(err)
	}
	if _, ok := recall(path, "boot 1\n"); ok {
		t.Error("recall of a truncated result = true, want false")
	}
}

func TestFollow(t *testing.T) {
	for text, want := range map[string]int{
		"":                   -1,
		"ended 0\n":          0,
		"ended 137\n":        137,
		"noise\nended x\n\n": -1,
	} {
		ended := false
		if got := follow(strings.NewReader(text), func() { ended = true }); got != want || ended != (want >= 0) {
			t.Errorf("%q: status = %d, ended = %t, want %d", text, got, ended, want)
		}
	}
}
