package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endLimit is how long a guest may take to switch off after its command has exited.
const endLimit = 5 * time.Minute

// CacheVar is an environment variable with the directory for kernels. The default is vipd-guest in
// the user's cache directory.
const CacheVar = "VIPD_GUEST_CACHE"

// Run boots a guest, runs the command in it, and returns its exit status. It returns an error if
// the guest did not boot, stopped before the command exited, or reached its limit (ErrLimit).
func Run(ctx context.Context, o Options, command ...string) (int, error) {
	if err := Missing(); err != nil {
		return 0, err
	}
	o = o.withDefaults()
	if err := o.resolve(); err != nil {
		return 0, err
	}
	dir, err := cacheDir()
	if err != nil {
		return 0, err
	}
	c := cache{dir: dir, source: debian{}, log: o.Log}
	folder, release, err := c.kernel(ctx)
	if err != nil {
		return 0, fmt.Errorf("getting a kernel for the guest: %w", err)
	}
	defer release()
	k, err := openKernel(folder)
	if err != nil {
		return 0, err
	}
	job, err := os.MkdirTemp("", "vipd-guest-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(job) }()
	root, err := initramfs(ctx, k)
	if err != nil {
		return 0, err
	}
	m := machine{kernel: k, image: k.unpack(ctx, filepath.Join(job, "vmlinux")), job: job, options: o}
	if err := os.WriteFile(m.initrd(), root, 0o644); err != nil {
		return 0, err
	}
	m.kvm = kvmWorks(ctx, dir, m)
	if err := os.WriteFile(filepath.Join(job, "start"), []byte(m.startScript(command)), 0o644); err != nil {
		return 0, err
	}
	return m.run(ctx)
}

// resolve makes the directories absolute, because the guest's working directory differs.
func (o *Options) resolve() (err error) {
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if o.Writable == "" {
		return nil
	}
	if o.Writable, err = filepath.Abs(o.Writable); err == nil {
		o.Writable, err = filepath.EvalSymlinks(o.Writable)
	}
	if err != nil {
		return fmt.Errorf("finding the writable folder: %w", err)
	}
	return nil
}

func cacheDir() (string, error) {
	if dir := os.Getenv(CacheVar); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a folder for kernels (%s names one): %w", CacheVar, err)
	}
	return filepath.Join(dir, "vipd-guest"), nil
}

// machine is a guest. Its job directory contains its input and its console output.
type machine struct {
	kernel  kernel
	image   string // the image to boot, if not the kernel's vmlinuz
	job     string
	options Options
	kvm     bool
}

func (m machine) initrd() string  { return filepath.Join(m.job, "initrd") }
func (m machine) console() string { return filepath.Join(m.job, "console") }

// args returns qemu's command line. The descriptors 3, 4 and 5 receive stdout, stderr and the
// command's progress.
func (m machine) args() []string {
	accelerator, parameter := emulated(m.counted())
	if m.kvm {
		accelerator, parameter = []string{"-accel", "kvm", "-cpu", "host"}, ""
	}
	args := append(append(m.base(parameter), accelerator...),
		"-smp", strconv.Itoa(m.options.CPUs), "-m", strconv.Itoa(m.options.Memory), "-device", "virtio-serial-pci",
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
		"-fsdev", "local,id=job,path="+comma(m.job)+",security_model=none,readonly=on",
		"-device", "virtio-9p-pci,fsdev=job,mount_tag=job")
	for i := 1; i <= 3; i++ {
		args = append(args, "-chardev", fmt.Sprintf("file,id=port%d,path=/dev/fd/%d", i, i+2),
			"-device", fmt.Sprintf("virtserialport,chardev=port%d,nr=%[1]d", i))
	}
	if m.options.Tap != "" {
		args = append(args, "-netdev", "tap,id=tap,script=no,downscript=no,ifname="+comma(m.options.Tap), "-device", "virtio-net-pci,netdev=tap,mac="+TapMAC)
	}
	if m.options.Monitor != "" {
		args = append(args, "-qmp", "unix:"+comma(m.options.Monitor)+",server=on,wait=off")
	}
	if m.options.Writable != "" {
		args = append(args, "-fsdev", "local,id=writable,path="+comma(m.options.Writable)+",security_model=none",
			"-device", "virtio-9p-pci,fsdev=writable,mount_tag=writable")
	}
	return args
}

// counted reports whether the machine's clock counts executed instructions. A machine with several
// CPUs does not boot with such a clock.
func (m machine) counted() bool { return !m.kvm && m.options.CPUs == 1 }

// emulated returns the options of a machine without KVM, and the kernel parameters that belong to
// them. With the processor's fast string instructions, the kernel would clear and copy memory with
// instructions that the emulator executes byte by byte: a new process would start three times as
// slowly. It would also read its time from a device (the HPET), because it can't know that the
// emulator's counter is a reliable clock. Each such read would leave the translated code, and stop
// all processors.
//
// With shift=0 an instruction is a nanosecond. With sleep=on, the clock follows the host's clock
// while the machine waits. With sleep=off, it would jump to the next timer before the host can read
// a file.
func emulated(counted bool) (options []string, parameter string) {
	threads, clock := "multi", []string(nil)
	if counted {
		threads, clock = "single", []string{"-icount", "shift=0,sleep=on"}
	}
	options = append([]string{"-accel", "tcg,thread=" + threads + ",tb-size=512", "-cpu", "max,-erms,-fsrm"}, clock...)
	return options, "tsc=reliable clocksource=tsc"
}

// base returns the arguments that guests and trials share.
func (m machine) base(parameter string) []string {
	return []string{"-display", "none", "-vga", "none", "-no-reboot", "-nic", "none", "-monitor", "none",
		"-serial", "file:" + comma(m.console()), "-kernel", cmp.Or(m.image, m.kernel.packed()), "-initrd", m.initrd(),
		"-append", "console=ttyS0 quiet panic=1 mitigations=off nokaslr audit=0 " + parameter}
}

// comma escapes a value for qemu's options.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// command returns qemu's command. qemu is killed when ctx is done or this process dies. If
// permitted, qemu gets a higher priority, because it is a single busy thread, and the other tests
// finish before it.
func (m machine) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, qemu, args...)
	if os.Geteuid() == 0 {
		cmd = exec.CommandContext(ctx, "nice", append([]string{"-n", "-10", qemu}, args...)...)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (m machine) run(ctx context.Context) (int, error) {
	runtime.LockOSThread() // Pdeathsig is sent when the forking thread exits
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeoutCause(ctx, m.options.Limit, ErrLimit)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	end := func() { time.AfterFunc(endLimit, func() { fail(errors.New("it does not switch itself off")) }) }

	cmd := m.command(ctx, m.args())
	var words bytes.Buffer // qemu's own messages
	cmd.Stderr = &words
	status := -1
	var readers sync.WaitGroup
	for _, read := range []func(io.Reader){
		func(r io.Reader) { _, _ = io.Copy(m.options.Stdout, r) },
		func(r io.Reader) { _, _ = io.Copy(m.options.Stderr, r) },
		func(r io.Reader) { status = follow(r, end) },
	} {
		r, w, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		defer func() { _ = r.Close() }()
		defer func() { _ = w.Close() }() // closes the pipe if the function returns early
		cmd.ExtraFiles = append(cmd.ExtraFiles, w)
		readers.Go(func() { read(r) })
	}
	err := m.options.Within(cmd.Start)
	for _, w := range cmd.ExtraFiles {
		_ = w.Close()
	}
	if err == nil {
		err = cmd.Wait()
	}
	readers.Wait()
	switch {
	case status >= 0:
		return status, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = errors.New("it has switched itself off")
	}
	return 0, fmt.Errorf("waiting for the end of the command in the guest: %w%s", err, m.failureText(words.String()))
}

// follow reads the command's progress from the start script, and returns its exit status, or -1 if
// the command has not exited.
func follow(r io.Reader, ended func()) int {
	status := -1
	for lines := bufio.NewScanner(r); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch n, err := strconv.Atoi(rest); {
		case word == "ended" && err == nil:
			status = n
			ended()
		}
	}
	return status
}

// failureText returns qemu's messages, and the end of a failed guest's console output.
func (m machine) failureText(words string) string {
	if words = strings.TrimSpace(words); words != "" {
		words = "\n" + words
	}
	console, err := os.ReadFile(m.console())
	text := strings.TrimSpace(strings.ReplaceAll(string(console), "\r", ""))
	if err != nil || text == "" {
		return words + "\n(its console is empty)"
	}
	lines := strings.Split(text, "\n")
	return words + "\nits console ends with:\n  " + strings.Join(lines[max(0, len(lines)-30):], "\n  ")
}
