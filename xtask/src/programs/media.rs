//! Pictures, film and pages: large blocks, alignment, plugins, many threads.

use super::generate::{Numbers, file_fingerprint, fingerprint};
use super::install::Need;
use super::stage::Stage;
use super::{Evidence, Program};
use anyhow::{Result, ensure};
use std::fmt::Write as _;

pub(super) const FFMPEG: Program = Program {
    name: "ffmpeg",
    quick: false,
    needs: &[Need::new("ffmpeg", "ffmpeg")],
    version: &["ffmpeg", "-version"],
    what: "test film and tone through filters to H.264, VP9, MPEG-4 and AAC, decoded again; MD5",
    loaded_in: &["ffmpeg"],
    prepare: |_| Ok(()),
    run: ffmpeg,
};

pub(super) const IMAGEMAGICK: Program = Program {
    name: "imagemagick",
    quick: false,
    // Not `convert`: other programs are called that, too.
    needs: &[Need::new("/usr/bin/convert-im*", "imagemagick")],
    version: &["/usr/bin/convert-im*", "-version"],
    what: "generated pictures resized, blurred, warped, through PNG, JPEG, TIFF, GIF; pixels",
    loaded_in: &["convert-im"],
    prepare: |_| Ok(()),
    run: imagemagick,
};

pub(super) const GHOSTSCRIPT: Program = Program {
    name: "ghostscript",
    quick: false,
    needs: &[Need::new("gs", "ghostscript")],
    version: &["gs", "--version"],
    what: "a generated PostScript document to PNG, to PDF, and that PDF to PNG and text",
    loaded_in: &["gs"],
    prepare: |stage| stage.write_input("book.ps", pages(stage.pick(10, 150))),
    run: ghostscript,
};

fn ffmpeg(stage: &Stage) -> Result<Evidence> {
    let seconds = stage.pick(2, 12);
    let mut evidence = Evidence::default();
    let film = format!("testsrc2=size=640x360:rate=25:duration={seconds}");
    let tone = format!("sine=frequency=440:duration={seconds}");
    let codecs = [
        ("h264", "-c:v libx264 -preset medium -c:a aac"),
        ("vp9", "-c:v libvpx-vp9 -deadline realtime -cpu-used 6 -row-mt 1 -c:a aac"),
        ("mpeg4", "-c:v mpeg4 -q:v 4 -c:a aac"),
    ];
    for (name, codec) in codecs {
        let file = format!("{name}.mkv");
        encoder(stage)?
            .line("-f lavfi -i")
            .arg(&film)
            .line("-f lavfi -i")
            .arg(&tone)
            .line("-filter:v hue=s=0.5,unsharp,scale=480:270,rotate=0.1")
            .line(codec)
            .line("-threads 4 -flags +bitexact -fflags +bitexact")
            .arg(&file)
            .success()?;
        let decoded = encoder(stage)?.line("-i").arg(&file).line("-f md5 -").success()?.text();
        evidence = evidence
            .fact(format!("{name} file"), file_fingerprint(&stage.work.join(&file))?)
            .fact(format!("{name} decoded"), decoded);
    }
    evidence.summary = format!("{} codecs, {seconds} s each, files equal to the bit", codecs.len());
    Ok(evidence)
}

fn encoder(stage: &Stage) -> Result<super::process::Process<'_>> {
    Ok(stage.process("ffmpeg")?.line("-nostdin -hide_banner -loglevel error -y"))
}

fn imagemagick(stage: &Stage) -> Result<Evidence> {
    let size = stage.pick("500x400", "1100x900");
    let mut evidence = Evidence::default();
    let convert = || stage.process("/usr/bin/convert-im*");
    convert()?
        .line("-size")
        .arg(size)
        .line("-seed 42 plasma:fractal -depth 8 original.png")
        .success()?;
    let effects = [
        "-resize 70% -unsharp 0x1",
        "-blur 0x6 -modulate 110,80",
        "-rotate 17 -colorspace Gray",
        "-swirl 120 -implode 0.2",
        "-distort Perspective 0,0,20,30,400,0,380,10,400,300,390,290,0,300,5,310",
        "-morphology Dilate Disk:4 -negate",
        "-quantize Lab -colors 32",
    ];
    for (number, effect) in effects.iter().enumerate() {
        for format in ["png", "jpg", "tiff", "gif"] {
            let file = format!("picture{number}.{format}");
            convert()?.line("original.png").line(effect).arg(&file).success()?;
            let pixels = convert()?.arg(&file).line("-depth 8 rgb:-").success()?.stdout;
            ensure!(!pixels.is_empty(), "{file} has no pixels");
            evidence = evidence.fact(file, fingerprint(&pixels));
        }
    }
    evidence.summary = format!("{} pictures, same pixels", evidence.facts.len());
    Ok(evidence)
}

fn ghostscript(stage: &Stage) -> Result<Evidence> {
    let render = |device: &str, from: &str, to: &str| {
        stage
            .process("gs")?
            .line("-q -dNOPAUSE -dBATCH -dSAFER -r72 -dNumRenderingThreads=2")
            .arg(format!("-sDEVICE={device}"))
            .arg(format!("-sOutputFile={to}"))
            .arg(from)
            .success()
    };
    let book = stage.input.join("book.ps");
    render("png16m", &book.to_string_lossy(), "direct%03d.png")?;
    render("pdfwrite", &book.to_string_lossy(), "book.pdf")?;
    render("png16m", "book.pdf", "again%03d.png")?;
    render("txtwrite", "book.pdf", "book.txt")?;
    let mut evidence = Evidence::default();
    let mut files: Vec<_> =
        std::fs::read_dir(&stage.work)?.map(|it| Ok(it?.path())).collect::<Result<_>>()?;
    files.sort();
    // The PDF itself carries the time of day.
    for file in
        files.iter().filter(|it| it.extension().is_some_and(|it| it == "png" || it == "txt"))
    {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        evidence = evidence.fact(name, file_fingerprint(file)?);
    }
    evidence.summary = format!("{} pages and texts, same bytes", evidence.facts.len());
    Ok(evidence)
}

/// A document of curves, shades and text in several fonts.
fn pages(count: u64) -> String {
    let mut numbers = Numbers::new(14);
    let mut text = "%!PS-Adobe-3.0\n".to_owned();
    for page in 1..=count {
        for _ in 0..250 {
            let mut point = || numbers.below(600);
            let _ = writeln!(
                text,
                "newpath {} {} moveto {} {} {} {} {} {} curveto {} 100 div setlinewidth \
                 0.{} 0.{} 0.{} setrgbcolor {}",
                point(),
                point(),
                point(),
                point(),
                point(),
                point(),
                point(),
                point(),
                point(),
                point() % 10,
                point() % 10,
                point() % 10,
                if point() % 4 == 0 { "closepath fill" } else { "stroke" }
            );
        }
        for line in 0..40 {
            let font = ["Times-Roman", "Helvetica-Bold", "Courier"][numbers.below(3) as usize];
            let size = 6 + numbers.below(10);
            let words = numbers.words(8);
            let _ = writeln!(
                text,
                "/{font} findfont {size} scalefont setfont 30 {} moveto ({words}) show",
                780 - line * 18
            );
        }
        let _ = writeln!(
            text,
            "<< /ShadingType 2 /ColorSpace /DeviceRGB /Coords [0 0 {page} 300] \
            /Function << /FunctionType 2 /Domain [0 1] /C0 [1 0 0] /C1 [0 0 1] /N 1 >> >> \
            gsave 100 100 80 80 rectclip shfill grestore showpage"
        );
    }
    text
}
