// Command probe reads what the agent's probe reads, the plain way of a Go program, and prints the time of one probe.
//
// It is the peer of the row "one full probe": online CPUs, /proc/meminfo, the page counts of every huge page size, and
// the file system of a directory.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// reading is what one probe learns, in the units of the agent: counts and bytes.
type reading struct {
	CPUs             int              `json:"cpus"`
	MemoryBytes      int64            `json:"memory_bytes"`
	HugepageBytes    map[string]int64 `json:"hugepage_bytes"`
	StorageBytes     int64            `json:"storage_bytes"`
	AvailableStorage int64            `json:"available_storage_bytes"`
}

func main() {
	procfs := flag.String("procfs", "/proc", "root of procfs")
	sysfs := flag.String("sysfs", "/sys", "root of sysfs")
	root := flag.String("root", "/", "directory whose file system is measured")
	count := flag.Int("count", 1000, "probes to time")
	flag.Parse()

	var last reading
	var err error
	start := time.Now()
	for range *count {
		if last, err = probe(*procfs, *sysfs, *root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	elapsed := time.Since(start)
	out := map[string]any{"ns_per_probe": elapsed.Nanoseconds() / int64(*count), "reading": last}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func probe(procfs, sysfs, root string) (reading, error) {
	r := reading{HugepageBytes: map[string]int64{}}
	var err error
	if r.CPUs, err = onlineCPUs(filepath.Join(sysfs, "devices/system/cpu/online")); err != nil {
		return r, err
	}
	defaultSize, defaultTotal, err := meminfo(filepath.Join(procfs, "meminfo"), &r)
	if err != nil {
		return r, err
	}
	if err := hugepages(filepath.Join(sysfs, "kernel/mm/hugepages"), &r); err != nil {
		return r, err
	}
	if defaultTotal > 0 {
		r.HugepageBytes[fmt.Sprintf("%dkB", defaultSize)] = defaultTotal * defaultSize * 1024
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(root, &fs); err != nil {
		return r, err
	}
	r.StorageBytes = int64(fs.Blocks) * fs.Frsize
	r.AvailableStorage = int64(fs.Bavail) * fs.Frsize
	return r, nil
}

// onlineCPUs counts the processors of a list such as "0-3,8".
func onlineCPUs(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	count := 0
	for _, part := range strings.Split(strings.TrimSpace(string(data)), ",") {
		low, high, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			return 0, err
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(high); err != nil {
				return 0, err
			}
		}
		count += last - first + 1
	}
	return count, nil
}

// meminfo fills the memory in and returns the default huge page size in kB and how many pages of it there are.
func meminfo(path string, r *reading) (sizeKB, total int64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	for _, line := range strings.Split(string(data), "\n") {
		key, rest, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		var target *int64
		switch key {
		case "MemTotal":
			target = &r.MemoryBytes
		case "HugePages_Total":
			target = &total
		case "Hugepagesize":
			target = &sizeKB
		default:
			continue
		}
		value, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*target = value
	}
	r.MemoryBytes *= 1024
	return sizeKB, total, nil
}

// hugepages adds every page size that has pages.
func hugepages(dir string, r *reading) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		size := strings.TrimPrefix(entry.Name(), "hugepages-")
		sizeKB, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name(), "nr_hugepages"))
		if err != nil {
			return err
		}
		pages, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			return err
		}
		if pages > 0 {
			r.HugepageBytes[size] = pages * sizeKB * 1024
		}
	}
	return nil
}
