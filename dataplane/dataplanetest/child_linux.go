package dataplanetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"vipd/balancer"
	"vipd/test/wait"
)

// childVar is an environment variable that contains an errand, the task of a child process. If it
// is set, Run acts as a daemon that performs the errand until the parent process kills it.
const childVar = "VIPD_DATAPLANETEST_CHILD"

// errand is the task of a child process. It is passed as JSON in childVar.
type errand struct {
	Local []netip.Addr
	// Services holds the services that the child applies first.
	Services []*balancer.Service
	// Then holds the services that the child applies after it has read the first line of its input.
	// From then on, the health checks of the targets in Down fail. If Then is not nil, the child
	// makes no random changes.
	Then []*balancer.Service
	Down []balancer.Target
	// Servers holds the addresses of the endpoints that random changes use. Seed determines the
	// changes.
	Servers []addrs
	Seed    uint64
}

// history returns the random changes that the child makes.
func (e *errand) history() *history {
	var servers []*server
	for _, a := range e.Servers {
		servers = append(servers, &server{addr: a})
	}
	return newHistory(e.Seed, servers, 100, 6)
}

// ready is the line that the child prints once exactly the wanted state is applied. After the child
// has read the next line of its input, it starts to make changes.
const ready = "dataplanetest: ready"

// runChild performs the errand until this process is killed or its parent exits.
func runChild(t *testing.T, s *Subject) {
	var e errand
	if err := json.Unmarshal([]byte(os.Getenv(childVar)), &e); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, s: s, w: &world{own: e.Local}, dp: s.New(t), host: s.newHost(t)}
	r.steer(wait.Scaled(driverProbe))
	defer func() { r.stop() }()
	r.apply(e.Services...)
	checkKernelState(r, "after the start")
	if t.Failed() {
		return
	}
	fmt.Println(ready)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return // the parent has exited
	}
	if e.Then != nil {
		r.judge(balancer.HealthDown, e.Down...)
		r.apply(e.Then...)
		fmt.Println(ready)
	}
	gone := make(chan struct{}) // closed when the parent has exited
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(gone)
	}()
	if e.Then != nil {
		<-gone
		return
	}
	h := e.history()
	h.ranges = r.dp.Capabilities().MaxPorts > 0
	for i := 1; ; i++ {
		select {
		case <-gone:
			return
		default:
		}
		h.next()
		if revision := r.set(append(h.wanted(), e.Services...)...); i%4 == 0 {
			if err := r.wait(revision); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func checkKernelState(r *rig, when string) {
	r.Helper()
	r.stop() // a bare rig's direct calls must not overlap with the engine's calls
	(&bare{r}).wantState(when, r.wanted())
	r.start()
}

// child is another process of this test binary that performs an errand.
type child struct {
	t     testing.TB
	in    io.Writer
	lines *bufio.Scanner // its standard output
	kill  func()
}

// startChild starts a child process that runs only the test named root and performs the errand e.
func startChild(t *testing.T, root string, e errand) *child {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.count=1", "-test.run="+only(root))
	cmd.Env = append(os.Environ(), childVar+"="+string(text))
	in, err := cmd.StdinPipe() // if this process is killed, the pipe is closed, which makes the child exit
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() { cancel(); _ = cmd.Wait(); _ = in.Close() })
	t.Cleanup(kill)
	return &child{t, in, bufio.NewScanner(out), kill}
}

// awaitReady waits until the child has applied the wanted state.
func (c *child) awaitReady() {
	c.t.Helper()
	var said []string
	for c.lines.Scan() {
		if c.lines.Text() == ready {
			return
		}
		said = append(said, c.lines.Text())
	}
	c.t.Fatalf("the child ended before it printed the ready line; output:\n%s", strings.Join(said, "\n"))
}

func (c *child) start() {
	c.t.Helper()
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		c.t.Fatal(err)
	}
}

// only returns a -test.run pattern that matches only the test or subtest with this name.
func only(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
