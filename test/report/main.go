package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "-kernel" {
		packages, err := kernelPackages()
		if err != nil {
			fmt.Fprintf(os.Stderr, "report: %v\n", err)
			os.Exit(1)
		}
		if len(packages) == 0 {
			fmt.Println("no package has tests that need the kernel")
			return
		}
		args = append(args[1:], packages...)
	}
	ok, err := run(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "report: %v\n", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// run runs the tests and prints the report; false: something failed.
func run(args []string) (bool, error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("starting go test: %w", err)
	}
	s := newSummary(os.Stdout)
	readErr := s.read(events)
	waitErr := cmd.Wait()
	s.print(waitErr)
	return waitErr == nil && s.failed() == 0, readErr
}

// kernelPackages lists the packages whose tests, or whose test kits, use vipd/test/lab.
func kernelPackages() ([]string, error) {
	const form = `{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`
	cmd := exec.Command("go", "list", "-f", form, "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w", err)
	}
	var packages []string
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if words[0] == "vipd/test/lab" || slices.Contains(words[1:], "vipd/test/lab") {
			packages = append(packages, words[0])
		}
	}
	return packages, nil
}
