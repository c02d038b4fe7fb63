package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// request is a request to a box.
type request struct {
	Do string `json:"do"`
	// Backend, Spec and Peer (the address of the sender's link) are arguments of "load".
	Backend backend `json:"backend,omitempty"`
	Spec    spec    `json:"spec"`
	Peer    string  `json:"peer,omitempty"`
	// Measure and N are arguments of "change", which makes the Nth change of a kind. Measure and
	// For are arguments of "use".
	Measure measure       `json:"measure,omitempty"`
	N       int           `json:"n,omitempty"`
	For     time.Duration `json:"for,omitempty"`
}

// answer is a box's answer to a request. It has an error, or a number in the measure's unit.
type answer struct {
	Err    string  `json:"err,omitempty"`
	Number float64 `json:"number"`
}

// box is the benchmark's handle for a process that represents a host with rules.
type box struct {
	spec    spec
	backend backend
	link    netlink.Link     // the sender's end of the link
	peer    net.HardwareAddr // address of the box's end

	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// newBox starts a box that has only its links. The box is killed when ctx is done.
func newBox(ctx context.Context, n int, b backend, s spec) (_ *box, err error) {
	x := &box{spec: s, backend: b, peer: net.HardwareAddr{0x02, 0, 0, 0, byte(n), 1}} // a locally administered address
	if x.cmd, err = apart(ctx, boxRole); err != nil {
		return nil, err
	}
	if x.in, err = x.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := x.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	x.out = json.NewDecoder(out)
	if err := x.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a box: %w", err)
	}
	name := fmt.Sprintf("%s%d", b, n)
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name},
		PeerName:  inLink, PeerHardwareAddr: x.peer, PeerNamespace: netlink.NsPid(x.cmd.Process.Pid),
	})
	if err == nil {
		x.link, err = netlink.LinkByName(name)
	}
	if err == nil {
		err = netlink.LinkSetUp(x.link)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("linking to a box: %w", err), x.close())
	}
	return x, nil
}

// ask sends a request, and waits for the answer.
func (x *box) ask(q request) (float64, error) {
	if err := json.NewEncoder(x.in).Encode(q); err != nil {
		return 0, fmt.Errorf("asking %s of %s: %w", q.Do, x, err)
	}
	var a answer
	if err := x.out.Decode(&a); err != nil {
		return 0, fmt.Errorf("waiting for %s of %s: %w", q.Do, x, err)
	}
	if a.Err != "" {
		return 0, fmt.Errorf("%s of %s: %s", q.Do, x, a.Err)
	}
	return a.Number, nil
}

func (x *box) String() string {
	return fmt.Sprintf("the %s box of %s with %d x %d", x.backend, x.spec.Layout, x.spec.Services, x.spec.Endpoints)
}

// close stops the box and everything in it.
func (x *box) close() error {
	_ = x.in.Close() // closing the pipe stops the box
	err := x.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() < 0 {
		return nil // the box was killed because ctx is done
	}
	return err
}

// serve runs in the box, and executes requests until its input ends.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := setUp(); err != nil {
		return err
	}
	h := &host{}
	defer h.stop()
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q request
		if err := requests.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		var err error
		if a.Number, err = h.do(ctx, q); err != nil {
			a.Err = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// host is the state of a box in its own process.
type host struct {
	backend backend
	subject subject
	far     netlink.Link
	tap     *tap // open while endpoints answer
}

func (h *host) stop() {
	if h.subject != nil {
		h.subject.stop()
	}
}

// do executes one request.
func (h *host) do(ctx context.Context, q request) (float64, error) {
	switch q.Do {
	case "load":
		var err error
		if h.far, err = connect(q.Peer, q.Spec); err != nil {
			return 0, err
		}
		if h.subject, err = newSubject(q.Backend, q.Spec); err != nil {
			return 0, err
		}
		h.backend = q.Backend
		took, err := h.subject.load(ctx)
		return took.Seconds(), err
	case "change":
		took, err := h.subject.change(ctx, q.Measure, q.N)
		return took.Seconds() * 1e3, err
	case "rules":
		n, err := countRules(ctx, h.backend)
		return float64(n), err
	case "memory":
		return peakMemory()
	case "use":
		return h.use(ctx, q.Measure, q.For)
	case "rest":
		h.subject.stop()
		runtime.GC()
		return 0, nil
	case "open":
		return 0, open()
	case "shut":
		return 0, shut()
	case "listen":
		var err error
		h.tap, err = openTap(h.far)
		return 0, err
	case "answer":
		n, err := h.tap.answer()
		return float64(n), err
	case "forget":
		return 0, netlink.ConntrackTableFlush(netlink.ConntrackTable)
	case "arrived":
		far, err := netlink.LinkByIndex(h.far.Attrs().Index)
		if err != nil {
			return 0, err
		}
		return float64(far.Attrs().Statistics.RxPackets), nil
	}
	return 0, fmt.Errorf("there is no such order")
}

// newSubject creates a box's content.
func newSubject(b backend, s spec) (subject, error) {
	switch s.Layout {
	case floorLayout:
		proto := "tcp"
		if s.Through == established {
			proto = "udp"
		}
		return floor{b, s.Endpoints, proto}, nil
	case emptyLayout:
		return empty{}, nil
	case listLayout:
		return newListRules(b, s), nil
	case ipvsadmLayout:
		return ipvsadm{s}, nil
	}
	return newOwn(b, s)
}

// peakMemory returns the maximum resident memory of this process, in MiB, from proc_pid_status(5).
func peakMemory() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			var kib float64
			_, err := fmt.Sscan(v, &kib)
			return kib / 1024, err
		}
	}
	return 0, errors.New("the kernel does not tell a process's peak memory")
}
