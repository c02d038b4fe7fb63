//go:build !linux

package main

import "fmt"

func main() { fmt.Println("not measured: the kernel's paths (needs Linux)") }
