package convert

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/test/program"
)

// largeInputs are generators of large configurations by format and name. Each writes n similar
// parts.
func largeInputs() map[string]func(b *strings.Builder, n int) {
	ip := func(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) }
	repeat := func(head string, part func(i int) string, tail string) func(*strings.Builder, int) {
		return func(b *strings.Builder, n int) {
			b.WriteString(head)
			for i := range n {
				b.WriteString(part(i))
			}
			b.WriteString(tail)
		}
	}
	return map[string]func(*strings.Builder, int){
		"haproxy/services": repeat("", func(i int) string {
			return fmt.Sprintf("listen web\n bind %s:80\n server a %s:80 check\n", ip(i), ip(i))
		}, ""),
		"haproxy/derived": repeat("", func(i int) string {
			return fmt.Sprintf("listen w\n bind %s:80,%s:81\n server a %s:80\n", ip(2*i), ip(2*i+1), ip(i))
		}, ""),
		"haproxy/endpoints":  repeat("listen web\n bind 10.0.0.1:80\n", func(i int) string { return "server a " + ip(i+1) + ":80 check\n" }, ""),
		"haproxy/refused":    repeat("listen web\n bind 10.0.0.1:80\n", func(i int) string { return "server a 224." + ip(i)[3:] + ":80\n" }, ""),
		"haproxy/duplicates": repeat("listen web\n bind 10.0.0.1:80\n", func(i int) string { return "server a 10.0.0.2:80\n" }, ""),
		"haproxy/names":      repeat("listen web\n bind 10.0.0.1:80\n", func(i int) string { return "server a host" + strconv.Itoa(i) + ":80\n" }, ""),
		"haproxy/unknown":    repeat("listen web\n bind 10.0.0.1:80\n server a 10.0.0.2\n", func(i int) string { return "word" + strconv.Itoa(i) + "\n" }, ""),
		"haproxy/defaults": repeat("", func(i int) string {
			return fmt.Sprintf("defaults a%d\nmode http\nlisten w%d\nbind %s:80\nserver a 10.0.0.1\n", i, i, ip(i))
		}, ""),
		"haproxy/binds":   repeat("listen web\n", func(i int) string { return " bind " + ip(i) + ":80\n" }, " server a 10.0.0.1:80\n"),
		"haproxy/ports":   repeat("listen web\n", func(i int) string { return fmt.Sprintf(" bind 10.0.0.1:%d\n", i%65535+1) }, " server a 10.0.0.1:80\n"),
		"haproxy/sets":    repeat("listen web\n", func(i int) string { return fmt.Sprintf(" bind %s:%d\n", ip(i), i%65535+1) }, " server a 10.0.0.1:80\n"),
		"haproxy/acls":    repeat("listen web\nbind 10.0.0.1:80\nserver a 10.0.0.1\n", func(i int) string { return " acl a src " + ip(i) + "\n" }, "tcp-request connection reject if !a\n"),
		"haproxy/rules":   repeat("frontend w\nbind 10.0.0.1:80\n", func(i int) string { return fmt.Sprintf(" use_backend b%d if a\n", i) }, ""),
		"haproxy/headers": repeat("listen w\nbind 10.0.0.1:80\nserver a 10.0.0.1 check\noption httpchk\nhttp-check send", func(i int) string { return fmt.Sprintf(" hdr n%d v", i) }, "\n"),

		"keepalived/services": repeat("", func(i int) string {
			return fmt.Sprintf("virtual_server %s 80 {\n lb_algo rr\n real_server %s 80 {\n TCP_CHECK {\n }\n }\n}\n", ip(i), ip(i))
		}, ""),
		"keepalived/derived": repeat("virtual_server_group g {\n", func(i int) string { return fmt.Sprintf("%s %d\n", ip(i), i%65535+1) }, "}\nvirtual_server group g {\nreal_server 10.0.0.1 80 {\n}\n}\n"),
		"keepalived/same":    repeat("", func(i int) string { return "virtual_server 10.0.0.1 80 {\n real_server 10.0.0.1 80 {\n }\n}\n" }, ""),
		"keepalived/refused": repeat("virtual_server 10.0.0.1 80 {\n", func(i int) string { return "real_server 224." + ip(i)[3:] + " 80 {\n}\n" }, "}\n"),
		"keepalived/endpoints": repeat("virtual_server 10.0.0.1 80 {\n", func(i int) string {
			return "real_server " + ip(i+1) + " 80 {\nTCP_CHECK {\nconnect_timeout 3\n}\n}\n"
		}, "}\n"),
		"keepalived/weights":   repeat("virtual_server 10.0.0.1 80 {\n", func(i int) string { return "real_server " + ip(i+1) + " 80 {\nweight 99999\n}\n" }, "}\n"),
		"keepalived/variables": repeat("", func(i int) string { return fmt.Sprintf("$N%d=10.0.0.1\n", i) }, "virtual_server $N1 80 {\n}\n"),
		"keepalived/marks":     repeat("virtual_server_group g {\n", func(i int) string { return fmt.Sprintf("fwmark %d\n", i) }, "}\nvirtual_server group g {\n}\n"),
		"keepalived/vrrp":      repeat("vrrp_instance a {\nvirtual_ipaddress {\n", func(i int) string { return ip(i) + "\n" }, "}\n}\n"),
		"keepalived/unknown":   repeat("virtual_server 10.0.0.1 80 {\n", func(i int) string { return fmt.Sprintf("word%d\n", i) }, "}\n"),
		"keepalived/checks":    repeat("virtual_server 10.0.0.1 80 {\nreal_server 10.0.0.2 80 {\n", func(i int) string { return "TCP_CHECK {\n}\n" }, "}\n}\n"),

		"nginx/services": repeat("stream {\n", func(i int) string {
			return fmt.Sprintf("upstream u%d {\nserver %s:80;\n}\nserver {\nlisten %s:80;\nproxy_pass u%d;\n}\n", i, ip(i), ip(i), i)
		}, "}\n"),
		"nginx/derived":   repeat("stream {\n", func(i int) string { return fmt.Sprintf("server {\nlisten %s:80;\nproxy_pass 10.0.0.1:80;\n}\n", ip(i)) }, "}\n"),
		"nginx/refused":   repeat("stream {\nupstream u {\n", func(i int) string { return "server 224." + ip(i)[3:] + ":80;\n" }, "}\nserver {\nlisten 10.0.0.1:80;\nproxy_pass u;\n}\n}\n"),
		"nginx/endpoints": repeat("stream {\nupstream u {\n", func(i int) string { return "server " + ip(i+1) + ":80;\n" }, "}\nserver {\nlisten 10.0.0.1:80;\nproxy_pass u;\n}\n}\n"),
		"nginx/allow":     repeat("stream {\nserver {\nlisten 10.0.0.1:80;\nproxy_pass 10.0.0.1:80;\n", func(i int) string { return "allow " + ip(i) + ";\n" }, "deny all;\n}\n}\n"),
		"nginx/denied": repeat("stream {\n", func(i int) string {
			return "server {\nlisten " + ip(i) + ":80;\nproxy_pass 10.0.0.1:80;\ndeny all;\n}\n"
		}, "}\n"),
		"nginx/listens": repeat("stream {\nserver {\n", func(i int) string { return fmt.Sprintf("listen %s:%d;\n", ip(i), i%65535+1) }, "proxy_pass 10.0.0.1:80;\n}\n}\n"),
		"nginx/unknown": repeat("stream {\n", func(i int) string { return fmt.Sprintf("word%d;\n", i) }, "server { listen 10.0.0.1:80; proxy_pass 10.0.0.1:80; } }\n"),
		"nginx/blocks":  repeat("", func(i int) string { return "stream { server { listen 10.0.0.1:80; proxy_pass 10.0.0.2:80; } }\n" }, ""),

		"ipvsadm/services": repeat("", func(i int) string {
			return fmt.Sprintf("-A -t %s:80 -s rr\n-a -t %s:80 -r %s:80 -m -w 1\n", ip(i), ip(i), ip(i))
		}, ""),
		"ipvsadm/derived":   repeat("", func(i int) string { return "-A -t 10.0.0.1:80 -s rr\n" }, ""),
		"ipvsadm/refused":   repeat("-A -t 10.0.0.1:80\n", func(i int) string { return "-a -t 10.0.0.1:80 -r 224." + ip(i)[3:] + ":80 -m\n" }, ""),
		"ipvsadm/endpoints": repeat("-A -t 10.0.0.1:80\n", func(i int) string { return "-a -t 10.0.0.1:80 -r " + ip(i+1) + ":80 -m\n" }, ""),
		"ipvsadm/thresholds": repeat("-A -t 10.0.0.1:80\n", func(i int) string {
			return "-a -t 10.0.0.1:80 -r " + ip(i+1) + ":80 -m -x 5 -y 3\n"
		}, ""),
		"ipvsadm/marks": repeat("", func(i int) string { return fmt.Sprintf("-A -f %d\n-a -f %d -r 10.0.0.1\n", i+1, i+1) }, ""),

		"ldirectord/services": repeat("", func(i int) string { return fmt.Sprintf("virtual=%s:80\n real=%s:80 masq\n", ip(i), ip(i)) }, ""),
		"ldirectord/refused":  repeat("virtual=10.0.0.1:80\n", func(i int) string { return " real=224." + ip(i)[3:] + ":80 masq\n" }, ""),
		"ldirectord/methods": repeat("virtual=10.0.0.1:80\n", func(i int) string {
			return fmt.Sprintf(" real=%s:80 %s 1 \"a%d\", \"b\"\n", ip(i), []string{"gate", "masq"}[i%2], i)
		}, ""),
		"ldirectord/unknown": repeat("", func(i int) string { return fmt.Sprintf("word%d = 1\nword\n", i) }, "virtual=10.0.0.1:80\n real=10.0.0.2:80 masq\n"),

		"kubernetes/services": repeat("", func(i int) string {
			return fmt.Sprintf("kind: Service\nmetadata: {name: w%d}\nspec: {clusterIP: %s, ports: [{port: 80}]}\n---\n"+
				"kind: EndpointSlice\nmetadata: {labels: {kubernetes.io/service-name: w%d}}\nports: [{port: 80}]\nendpoints: [{addresses: [%s]}]\n---\n", i, ip(i), i, ip(i))
		}, ""),
		"kubernetes/endpoints": repeat("kind: Service\nmetadata: {name: w}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n---\n"+
			"kind: EndpointSlice\nmetadata: {labels: {kubernetes.io/service-name: w}}\nports: [{port: 80}]\nendpoints:\n",
			func(i int) string { return "- addresses: [" + ip(i) + "]\n" }, ""),
		"kubernetes/refused": repeat("kind: Service\nmetadata: {name: w}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n---\n"+
			"kind: EndpointSlice\nmetadata: {labels: {kubernetes.io/service-name: w}}\nports: [{port: 80}]\nendpoints:\n",
			func(i int) string { return "- addresses: [224." + ip(i)[3:] + "]\n" }, ""),
		"kubernetes/ports": repeat("kind: Service\nmetadata: {name: w}\nspec:\n  clusterIP: 10.0.0.1\n  ports:\n",
			func(i int) string { return fmt.Sprintf("  - {name: p%d, port: %d}\n", i, i%65535+1) }, ""),
		"kubernetes/items":   repeat("kind: List\nitems:\n", func(i int) string { return "- {kind: Pod}\n" }, ""),
		"kubernetes/lost":    repeat("", func(i int) string { return fmt.Sprintf("kind: Endpoints\nmetadata: {name: w%d}\n---\n", i) }, ""),
		"kubernetes/unknown": repeat("kind: Service\nspec:\n", func(i int) string { return fmt.Sprintf("  w%d: 1\n", i) }, ""),

		"gobetween/services": repeat("", func(i int) string {
			return fmt.Sprintf("[servers.a%d]\nbind = \"%s:80\"\n[servers.a%d.discovery]\nkind = \"static\"\nstatic_list = [\"%s:80\"]\n", i, ip(i), i, ip(i))
		}, ""),
		"gobetween/refused":   repeat("[servers.a]\nbind = \"10.0.0.1:80\"\n[servers.a.discovery]\nkind = \"static\"\nstatic_list = [\n", func(i int) string { return "\"224." + ip(i)[3:] + ":80\",\n" }, "]\n"),
		"gobetween/endpoints": repeat("[servers.a]\nbind = \"10.0.0.1:80\"\n[servers.a.discovery]\nkind = \"static\"\nstatic_list = [\n", func(i int) string { return "\"" + ip(i+1) + ":80\",\n" }, "]\n"),
		"gobetween/derived": repeat("", func(i int) string {
			return fmt.Sprintf("[servers.\"a.%s\"]\nbind = \"10.0.0.1:80\"\n", strings.Repeat("x", 60)+strconv.Itoa(i))
		}, ""),
		"gobetween/rules":   repeat("[servers.a]\nbind = \"10.0.0.1:80\"\n[servers.a.access]\ndefault = \"deny\"\nrules = [\n", func(i int) string { return "\"allow " + ip(i) + "\",\n" }, "]\n"),
		"gobetween/unknown": repeat("[servers.a]\nbind = \"10.0.0.1:80\"\n", func(i int) string { return fmt.Sprintf("word%d = 1\n", i) }, ""),
	}
}

// largeText returns the configuration of a generator that has about size bytes.
func largeText(generate func(*strings.Builder, int), size int) string {
	var one, two strings.Builder
	generate(&one, 1000)
	generate(&two, 2000)
	n := max(1, size*1000/(two.Len()-one.Len()))
	var b strings.Builder
	generate(&b, n)
	return b.String()
}

// BenchmarkConvert converts 2 MB of each kind.
func BenchmarkConvert(b *testing.B) {
	for name, generate := range largeInputs() {
		b.Run(name, func(b *testing.B) {
			text := largeText(generate, 2<<20)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				convertLarge(b, name, text)
			}
		})
	}
}

// convertLarge converts the text of the generator of the name.
func convertLarge(t testing.TB, name, text string) {
	t.Helper()
	format, _, _ := strings.Cut(name, "/")
	if _, err := Convert(t.Context(), format, "origin", []byte(text), Options{}); err != nil {
		t.Fatalf("%s of %d bytes: %v", name, len(text), err)
	}
}

// TestTimeGrowsWithSize converts texts of 32 and 128 KB of each kind with vipctl, which has no race
// detector. The second conversion may need four times the processor time of the first; a linear
// search would need up to 16 times. Processor time excludes waits, but a busy machine disturbs it,
// so one of ten comparisons must pass.
func TestTimeGrowsWithSize(t *testing.T) {
	vipctl := filepath.Join(program.Bin(t), "vipctl")
	for name, generate := range largeInputs() {
		t.Run(name, func(t *testing.T) {
			small, large := largeText(generate, 32<<10), largeText(generate, 128<<10)
			var ratios []float64
			for range 10 {
				short, long := processorTime(t, vipctl, name, small), processorTime(t, vipctl, name, large)
				ratio := float64(long) / float64(max(short, time.Millisecond))
				if ratio < 5 {
					return
				}
				ratios = append(ratios, ratio)
			}
			t.Errorf("times of 128 KB / 32 KB = %.1f, want some below 5", ratios)
		})
	}
}

// processorTime returns the time that a processor spends in a conversion by vipctl.
func processorTime(t *testing.T, vipctl, name, text string) time.Duration {
	t.Helper()
	const servicesDisabled = 3
	stderr, cmd := runConvert(t, vipctl, name, text)
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != servicesDisabled && !strings.Contains(stderr, "has no service that vipd could serve") {
		t.Fatalf("exit code of %s = %d\n%s", cmd, code, stderr)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

// runConvert converts a text of the format that name begins with. Only one thread at a time runs Go
// code, so the garbage collector can't use idle processors.
func runConvert(t *testing.T, vipctl, name, text string) (stderr string, cmd *exec.Cmd) {
	t.Helper()
	format, _, _ := strings.Cut(name, "/")
	cmd = exec.CommandContext(t.Context(), vipctl, "convert", "--from", format, "-")
	var printed strings.Builder
	cmd.Env, cmd.Stdin, cmd.Stderr = []string{"GOMAXPROCS=1"}, strings.NewReader(text), &printed
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return printed.String(), cmd
}

// TestSharedListsAreBounded multiplies lists by the services that share them, and variables by
// their uses. vipctl must refuse each text before the result fills the memory.
func TestSharedListsAreBounded(t *testing.T) {
	vipctl := filepath.Join(program.Bin(t), "vipctl")
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i/250, i%250+1)
		}
		return b.String()
	}
	refusal := regexp.MustCompile(`:\d+: .*convert the file in parts`)
	for name, text := range map[string]string{
		"haproxy/backend":    "backend b\n" + many(3000, "server a 10.1.%d.%d\n") + many(3000, "frontend f\nbind 10.2.%d.%d:80\ndefault_backend b\n"),
		"haproxy/binds":      "listen l\n" + many(3000, "bind 10.2.%d.%d:%[2]d\n") + many(3000, "server a 10.1.%d.%d\n"),
		"haproxy/defaults":   "defaults\n" + many(3000, "log %d %d\n") + many(3000, "listen l\nbind 10.2.%d.%d:80\n"),
		"haproxy/ports":      "listen l\n" + many(3000, "bind 10.2.%d.%d:1-4000\n") + "server a 10.1.1.1\n",
		"haproxy/words":      "listen l\nbind 10.2.1.1:80\n" + many(3000, "default-server a%d a%d\nserver a 10.1.1.1\n"),
		"nginx/upstream":     "stream {\nupstream u {\n" + many(3000, "server 10.1.%d.%d:80;\n") + "}\n" + many(3000, "server { listen 10.2.%d.%d:80; proxy_pass u; }\n") + "}\n",
		"keepalived/group":   "virtual_server_group g {\n" + many(3000, "10.2.%d.%d 80\n") + "}\n" + many(3000, "virtual_server group g {\n}\n#%d %d\n"),
		"keepalived/servers": "virtual_server_group g {\n" + many(3000, "10.2.%d.%d %[2]d\n") + "}\nvirtual_server group g {\n" + many(3000, "real_server 10.1.%d.%d 80 {\n}\n") + "}\n",
		"kubernetes/ports": "kind: Service\nmetadata: {name: w}\nspec:\n  ports:\n" + many(3000, "  - {name: p%d-%d, port: 80}\n") + "---\n" +
			"kind: Endpoints\nmetadata: {name: w}\nsubsets:\n- addresses:\n" + many(3000, "  - ip: 10.1.%d.%d\n"),
		"ldirectord/ranges":     "virtual=10.2.1.1:80\n" + many(3000, " real=10.1.%d.1->10.1.%[1]d.%d:80 masq\n"),
		"keepalived/longchecks": "virtual_server 10.2.1.1 80 {\nvirtualhost " + strings.Repeat("x", 1<<20) + "\n" + many(3000, "real_server 10.1.%d.%d 80 {\nTCP_CHECK {\n}\n}\n") + "}\n",
	} {
		stderr, cmd := runConvert(t, vipctl, name, text)
		if cmd.ProcessState.ExitCode() != 1 || !refusal.MatchString(stderr) {
			t.Errorf("%s: error = %s, want an error with a place about shared lists", name, stderr)
		}
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); !ok || usage.Maxrss > 1<<20 {
			t.Errorf("%s: memory = %d KB, want 1 GB at most", name, usage.Maxrss)
		}
	}
}

// TestInterruptEndsConversion converts with a context that has ended. Each format returns the
// context's error.
func TestInterruptEndsConversion(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, generate := range largeInputs() {
		format, _, _ := strings.Cut(name, "/")
		if _, err := Convert(ctx, format, "origin", []byte(largeText(generate, 4<<10)), Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error = %v, want %v", name, err, context.Canceled)
		}
	}
}
