package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// effort configures the amount of work for each figure.
type effort struct {
	rounds  int           // rounds of first packets; each round yields one value for each path
	turns   int           // turns of all paths in a round
	batch   time.Duration // approximate time for the packets of one path in a turn
	changes int           // changes of each kind
	use     time.Duration // time for which CPU time is measured
}

func fullEffort() effort {
	return effort{rounds: 7, turns: 12, batch: 4 * time.Millisecond, changes: 5, use: 5 * time.Second}
}

func quickEffort() effort {
	return effort{rounds: 1, turns: 4, batch: time.Millisecond, changes: 1, use: time.Second}
}

// emulated returns the effort for an emulated kernel. Batches are longer, because few packets fit
// into one, and figures have more noise.
func (e effort) emulated() effort {
	e.batch *= 5
	e.changes *= 3
	e.use *= 4
	return e
}

// run measures the rows of one backend.
func run(ctx context.Context, b backend, rows []row, e effort, say func(format string, args ...any)) (_ samples, err error) {
	ctx, cancel := context.WithCancel(ctx)
	out := samples{}
	boxes := map[spec]*box{}
	defer func() { // the next backend must not be measured while this backend's boxes are being removed
		cancel()
		for _, x := range boxes {
			_ = x.close() // killed
		}
		for _, x := range boxes {
			if gone := awaitGone(x.link.Attrs().Name); err == nil {
				err = gone
			}
		}
	}()
	for _, r := range rows {
		if boxes[r.box] != nil {
			continue
		}
		x, err := newBox(ctx, len(boxes), b, r.box)
		if err != nil {
			return nil, err
		}
		boxes[r.box] = x
		say("%s: loading", x)
		took, err := x.ask(request{Do: "load", Backend: b, Spec: r.box, Peer: x.link.Attrs().HardwareAddr.String()})
		if err != nil {
			return nil, err
		}
		if err := controlPlane(x, rows, e, took, out, say); err != nil {
			return nil, err
		}
	}
	paths, err := aim(rows, boxes)
	defer func() {
		for _, p := range paths {
			p.flood.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	say("%s: sending packets", b)
	before, err := lost()
	if err != nil {
		return nil, err
	}
	if err := flow(ctx, paths, e, out); err != nil {
		return nil, err
	}
	after, err := lost()
	if err == nil && after > before { // lost packets cost nothing, so they would distort the figures
		say("%d packets were lost before any rule saw them, on a machine that is too busy: first packets are left out", after-before)
		for _, p := range paths {
			delete(out, p.name)
		}
	}
	return out, err
}

// lost returns the number of packets that the kernel dropped because its queues were full. In
// /proc/net/softnet_stat, it is the second column of each core's line, in hexadecimal
// (softnet_seq_show in net/core/net-procfs.c).
func lost() (sum uint64, err error) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		columns := strings.Fields(line)
		if len(columns) < 2 {
			return 0, fmt.Errorf("reading /proc/net/softnet_stat: %q", line)
		}
		n, err := strconv.ParseUint(columns[1], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("reading /proc/net/softnet_stat: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// controlPlane measures a box's rows except its packet costs. Then it stops the engine in the box.
func controlPlane(x *box, rows []row, e effort, load float64, out samples, say func(format string, args ...any)) error {
	for _, r := range rows {
		if r.box != x.spec || r.what.isPath() {
			continue
		}
		times, q := 1, request{Measure: r.what}
		switch r.what {
		case loading:
			out[r.name] = append(out[r.name], load)
			say("%s: %.3g", r.name, load)
			continue
		case endpointChanged, serviceAdded, serviceRemoved:
			if times, q.Do = e.changes, "change"; x.spec.Layout == listLayout {
				times = min(times, 3) // each change takes seconds
			}
		case ruleCount:
			q.Do = "rules"
		case memory:
			q.Do = "memory"
		case idle, disturbed:
			q.Do, q.For = "use", e.use
		}
		for n := range times {
			q.N = n
			v, err := x.ask(q)
			if err != nil {
				return err
			}
			out[r.name] = append(out[r.name], v)
		}
		say("%s: %.3g", r.name, out[r.name])
	}
	_, err := x.ask(request{Do: "rest"})
	return err
}

// path is a row that measures the cost of first packets.
type path struct {
	row
	box     *box
	flood   *flood
	packets int // packets of a batch
}

// aim opens a flood for each path, and verifies that its packets arrive.
func aim(rows []row, boxes map[spec]*box) (paths []*path, err error) {
	for _, r := range rows {
		if !r.what.isPath() {
			continue
		}
		x := boxes[r.box]
		mac := x.peer
		if r.what == nowhere {
			mac = net.HardwareAddr{0x02, 0xff, 0, 0, 0, 0}
		}
		f, err := newFloodTo(x, mac, targets(r))
		if err != nil {
			return paths, err
		}
		paths = append(paths, &path{row: r, box: x, flood: f})
		if r.what == nowhere {
			continue
		}
		if err := prove(x, f); err != nil {
			return paths, fmt.Errorf("%s: %w", r.name, err)
		}
		if x.spec.Through == established {
			if err := establish(x, f); err != nil {
				return paths, fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	for _, x := range boxes {
		if x.spec.Through != "" {
			continue
		}
		if _, err := x.ask(request{Do: "shut"}); err != nil {
			return paths, err
		}
	}
	return paths, nil
}

// targets returns the destinations of a path's packets.
func targets(r row) []netip.Addr {
	switch all := vips(r.box.Services); r.what {
	case lastVIP:
		return all[len(all)-1:]
	case anyEndpoint:
		some := make([]netip.Addr, r.box.Endpoints)
		for i := range some {
			some[i] = endpoint(i)
		}
		return some
	case noVIP:
		strangers := make([]netip.Addr, 1<<12)
		for i := range strangers {
			strangers[i] = endpoint(i)
		}
		return strangers
	default:
		return all
	}
}

// prove sends packets through a box while it does not drop them, and returns an error unless all
// arrive. Only packets with an endpoint's address arrive, because VIPs are not routed there.
func prove(x *box, f *flood) error {
	const packets = 200
	before, err := x.ask(request{Do: "arrived"})
	if err != nil {
		return err
	}
	if _, err := f.send(packets); err != nil {
		return err
	}
	came, quiet := 0.0, 0
	for came < packets && quiet < 20 { // on a busy machine some packets are still in transit when send returns
		after, err := x.ask(request{Do: "arrived"})
		if err != nil {
			return err
		}
		if quiet++; after-before > came {
			came, quiet = after-before, 0
		}
		if came < packets {
			time.Sleep(20 * time.Millisecond) // interval of polls
		}
	}
	if came != packets {
		return fmt.Errorf("of %d packets %.0f have come to endpoints", packets, came)
	}
	return nil
}

// establish lets the endpoints answer each flow.
func establish(x *box, f *flood) error {
	if _, err := x.ask(request{Do: "listen"}); err != nil {
		return err
	}
	if _, err := f.send(flowCount); err != nil {
		return err
	}
	n, err := x.ask(request{Do: "answer"})
	if err == nil && n != flowCount {
		return fmt.Errorf("of %d flows %.0f have answers", flowCount, n)
	}
	return err
}

// flow sends packets through all paths in turn, and records the time per packet in microseconds.
// The value of a round is the lower quartile of its turns, because other work on the machine only
// adds time. Turns are short, so other work affects all paths alike.
func flow(ctx context.Context, paths []*path, e effort, out samples) error {
	home, err := pinToCore()
	if err != nil {
		return err
	}
	defer home()
	for _, p := range paths {
		const probe, least = 200, 16
		took, err := p.flood.send(probe)
		if err != nil {
			return err
		}
		p.packets = max(least, int(probe*e.batch/max(took, 1)))
	}
	for range e.rounds {
		turns := samples{}
		for turn := range e.turns {
			for i := range paths {
				if err := ctx.Err(); err != nil {
					return err
				}
				p := paths[(i+turn)%len(paths)] // each turn starts with the next path
				took, err := p.shoot()
				if err != nil {
					return err
				}
				turns[p.name] = append(turns[p.name], took)
			}
		}
		for name, values := range turns {
			low, _, _ := quartiles(values)
			out[name] = append(out[name], low)
		}
	}
	return nil
}

// shoot sends a batch, and returns the time per packet in microseconds.
func (p *path) shoot() (float64, error) {
	if p.box.spec.Through == opening {
		if _, err := p.box.ask(request{Do: "forget"}); err != nil {
			return 0, err
		}
	}
	if _, err := p.flood.send(p.packets); err != nil { // the first batch is not counted, because the caches still hold another box's rules
		return 0, err
	}
	took, err := p.flood.send(p.packets)
	return float64(took.Nanoseconds()) / float64(p.packets) / 1e3, err
}

// pinToCore binds the calling goroutine to one core, and gives it priority over other work there,
// until home is called.
func pinToCore() (home func(), err error) {
	runtime.LockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("asking for the cores of this thread: %w", err)
	}
	last := len(before)*64 - 1
	for !before.IsSet(last) {
		last--
	}
	var one unix.CPUSet
	one.Set(last)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("keeping this thread on core %d: %w", last, err)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err != nil { // on Linux this sets the priority of the thread
		fmt.Fprintln(os.Stderr, "other work disturbs what is measured:", err)
	}
	return func() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) // the thread has no more work
		if err := unix.SchedSetaffinity(0, &before); err == nil {
			runtime.UnlockOSThread() // if the priority can't be restored, the thread stays locked and exits with its goroutine
		}
	}, nil
}
