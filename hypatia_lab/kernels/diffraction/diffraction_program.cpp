// The simulator as a program of its own, for times that include process start and file writing, as the seed's did:
//     diffraction_program <vectors file> <image file>
// The vectors file, in this machine's byte order: 14 int64 (ncrystals, nsources, size_h, size_k, size_l, low_h, low_k,
// low_l, slow, fast, oversample, na, nb, nc), then as float64 the arrays crystals, sources, detector, polarization and
// structure. The image file: slow · fast float32, slow axis first.

#include "diffraction.cpp"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

struct Bound {
    const char* name;
    int64_t low, high;
};

// What a scene allows. A table spans ±10,000 and a border of one on either side; low is the border's index.
constexpr Bound bounds[] = {
    {"ncrystals", 1, 100'000'000}, {"nsources", 1, 100'000'000}, {"size_h", 1, 20'003},     {"size_k", 1, 20'003},
    {"size_l", 1, 20'003},         {"low_h", -10'001, 10'001},   {"low_k", -10'001, 10'001}, {"low_l", -10'001, 10'001},
    {"slow", 1, 65'536},           {"fast", 1, 65'536},          {"oversample", 1, 64},     {"na", 1, 10'000},
    {"nb", 1, 10'000},             {"nc", 1, 10'000}};
constexpr int64_t table_limit = (int64_t{1} << 31) - 1;

struct File {
    std::FILE* handle;
    File(const std::string& path, const char* mode) : handle(std::fopen(path.c_str(), mode)) {}
    ~File() {
        if (handle) std::fclose(handle);
    }
    File(const File&) = delete;
};

std::runtime_error unreadable(const std::string& path) {
    return std::runtime_error("cannot read the vectors file '" + path + "': " + std::strerror(errno) +
                              "; name a readable file as the first argument");
}

std::runtime_error unwritable(const std::string& path) {
    return std::runtime_error("cannot write the image file '" + path + "': " + std::strerror(errno) +
                              "; name a file in a writable folder with room as the second argument");
}

void read_exactly(File& file, void* into, size_t bytes, const std::string& path) {
    if (std::fread(into, 1, bytes, file.handle) == bytes) return;
    if (std::ferror(file.handle)) throw unreadable(path);
    throw std::runtime_error("the vectors file '" + path + "' is cut short; write it again");
}

// Before anything is allocated: a wrong header must not ask for more memory than the file itself holds.
void check_length(File& file, int64_t numbers, const std::string& path) {
    const int64_t header = std::ftell(file.handle), asked = header + numbers * static_cast<int64_t>(sizeof(double));
    if (header < 0 || std::fseek(file.handle, 0, SEEK_END) != 0) throw unreadable(path);
    const int64_t found = std::ftell(file.handle);
    if (found < 0 || std::fseek(file.handle, header, SEEK_SET) != 0) throw unreadable(path);
    if (found == asked) return;
    throw std::runtime_error("the vectors file '" + path + "' is " + (found < asked ? "cut short" : "too long") +
                             ": its header asks for " + std::to_string(asked) + " bytes and " +
                             std::to_string(found) + " are there; write it again");
}

void check_sizes(const int64_t* sizes, const std::string& path) {
    const std::string remedy = "; check that the file starts with 14 int64 in this machine's byte order";
    for (size_t n = 0; n < std::size(bounds); ++n) {
        const auto& [name, low, high] = bounds[n];
        if (sizes[n] < low || sizes[n] > high) {
            throw std::runtime_error("the vectors file '" + path + "' has " + name + " = " + std::to_string(sizes[n]) +
                                     ", which must be from " + std::to_string(low) + " to " + std::to_string(high) +
                                     remedy);
        }
    }
    const int64_t entries = sizes[2] * sizes[3] * sizes[4];
    if (entries > table_limit) {
        throw std::runtime_error("the vectors file '" + path + "' has a structure table of " +
                                 std::to_string(entries) + " entries, which may be at most " +
                                 std::to_string(table_limit) + remedy);
    }
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void simulate(const std::string& vectors_path, const std::string& image_path) {
    int64_t sizes[std::size(bounds)];
    std::vector<double> arrays[5];
    {
        File file(vectors_path, "rb");
        if (!file.handle) throw unreadable(vectors_path);
        read_exactly(file, sizes, sizeof sizes, vectors_path);
        check_sizes(sizes, vectors_path);
        const int64_t counts[] = {9 * sizes[0], 4 * sizes[1], 10, 4, sizes[2] * sizes[3] * sizes[4]};
        check_length(file, std::accumulate(std::begin(counts), std::end(counts), int64_t{0}), vectors_path);
        for (int n = 0; n < 5; ++n) {
            arrays[n].resize(counts[n]);
            read_exactly(file, arrays[n].data(), counts[n] * sizeof(double), vectors_path);
        }
    }
    std::vector<float> image(sizes[8] * sizes[9]);
    // Opened before the simulation, so that a wrong path costs no computation.
    File file(image_path, "wb");
    if (!file.handle) throw unwritable(image_path);

    const auto start = std::chrono::steady_clock::now();
    diffraction_float32(arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(), arrays[4].data(),
                        image.data(), sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7],
                        sizes[8], sizes[9], sizes[10], sizes[11], sizes[12], sizes[13]);
    const double simulation = milliseconds_since(start);

    const auto written = std::chrono::steady_clock::now();
    const bool whole = std::fwrite(image.data(), sizeof(float), image.size(), file.handle) == image.size();
    if (!whole) throw unwritable(image_path);
    // The last bytes may fail as late as here: a full disk shows on closing.
    if (std::fclose(std::exchange(file.handle, nullptr)) != 0) throw unwritable(image_path);
    std::printf("simulation_ms %.3f writing_ms %.3f\n", simulation, milliseconds_since(written));
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) {
        std::fprintf(stderr, "error: found %d arguments; give two: diffraction_program <vectors file> <image file>\n",
                     count - 1);
        return 2;
    }
    try {
        simulate(arguments[1], arguments[2]);
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "error: not enough memory for '%s'; ask for fewer pixels or a smaller structure table\n",
                     arguments[1]);
        return 1;
    } catch (const std::exception& cause) {
        std::fprintf(stderr, "error: %s\n", cause.what());
        return 1;
    }
}
