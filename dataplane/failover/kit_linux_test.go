package failover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"vipd/dataplane/internal/nft"
	"vipd/test/lab"
	"vipd/test/wait"
)

// childVar is the environment variable that makes the test binary act as the owner of the listed
// VIPs instead of running tests.
const childVar = "VIPD_TEST_OWNER"

func TestMain(m *testing.M) {
	if vips := os.Getenv(childVar); vips != "" {
		if err := own(strings.Fields(vips)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	lab.Main(m)
}

// own acts as the owner of VIPs on the device "lan", and refreshes the gate forever. Until own
// reads a line from standard input, it opens the gate again whenever the gate has closed.
func own(texts []string) error {
	var vips []netip.Addr
	devices := map[netip.Addr]string{}
	for _, text := range texts {
		a := netip.MustParseAddr(text)
		vips, devices[a] = append(vips, a), "lan"
	}
	k, err := NewKernel(KernelOptions{Places: Places{Interfaces: []string{"lan"}, Devices: devices}, Lost: func() {}, Links: func() {}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	go k.Run(context.Background())
	if err := k.Close(); err != nil {
		return err
	}
	stop := make(chan bool)
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		close(stop)
	}()
	reopens := true
	for {
		k.Refresh()
		select {
		case <-stop:
			stop, reopens = nil, false
			fmt.Println("stopped")
		case <-time.After(defaultTimeout / 8): // real time, as in the gate
		}
		if !reopens {
			continue
		}
		if is, err := k.gate.IsOpen(); err != nil || is {
			if err != nil {
				return err
			}
			continue
		}
		if err := errors.Join(k.Unbind(vips), k.Open()); err != nil {
			return err
		}
		if failed := k.Bind(vips); len(failed) > 0 {
			return fmt.Errorf("adding VIPs: %v", failed)
		}
	}
}

// owner starts a process that owns VIPs on the host. After a call to stopReopening, the process no
// longer opens a closed gate.
func owner(t *testing.T, l *lab.Lab, vips ...string) (process *os.Process, stopReopening func()) {
	t.Helper()
	cmd := l.Host().Command(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+strings.Join(vips, " "))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error reports only that the process was killed
		clean(t, vips)
	})
	return cmd.Process, func() {
		t.Helper()
		fmt.Fprintln(in)
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "stopped\n" {
			t.Fatalf("output of the owner's process = %q, %v; want \"stopped\\n\"", line, err)
		}
	}
}

// clean removes the gate and VIPs that a killed owner left behind.
func clean(t *testing.T, vips []string) {
	g, err := NewGate(GateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := NewAddresses()
	if err != nil {
		t.Fatal(err)
	}
	var all []netip.Addr
	for _, v := range vips {
		all = append(all, netip.MustParseAddr(v))
	}
	if own, err := x.Strip(all); len(own) > 0 || err != nil {
		t.Errorf("Strip = %v, %v; want no own addresses", own, err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// answers asks from a namespace which hosts have the VIPs. It maps each VIP to the MAC of the host
// that answers for it.
func answers(t *testing.T, from *lab.NS, vips ...string) map[netip.Addr]net.HardwareAddr {
	t.Helper()
	var found map[netip.Addr]net.HardwareAddr
	err := from.Do(func() error {
		device, err := net.InterfaceByName("lan")
		if err != nil {
			return err
		}
		var all []netip.Addr
		for _, v := range vips {
			all = append(all, netip.MustParseAddr(v))
		}
		found, err = Probe(context.Background(), device.Index, all, wait.Scaled(60*time.Millisecond))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (g *Gate) IsOpen() (bool, error) {
	all, err := g.conn.Elements(g.table, aliveSet().Name)
	return len(all) > 0, err
}

func (g *Gate) Shut() error {
	var tx nft.Tx
	tx.FlushSet(g.table, aliveSet())
	if err := g.conn.Commit(&tx); err != nil {
		return fmt.Errorf("closing the gate of owned VIPs: %w", err)
	}
	return nil
}
