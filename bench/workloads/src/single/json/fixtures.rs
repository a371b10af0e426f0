//! Documents of the three usual kinds, after those that parsers have been compared with since
//! nativejson-benchmark: one full of strings, one full of objects, one full of numbers.

use super::document::Document;
use fastrand::Rng;

const WORDS: [&str; 16] = [
    "heap",
    "arena",
    "今日は",
    "page\nfault",
    "ページ",
    "bin",
    "\"quoted\"",
    "größe",
    "cache",
    "メモリ",
    "slab",
    "chunk",
    "https://example.org/a/b?c=d",
    "zone\u{2028}",
    "\u{1f980}",
    "free",
];

/// Messages of a social network: strings, many of them not ASCII or with escapes.
pub(super) fn messages(count: u32) -> Document {
    let mut rng = Rng::with_seed(7);
    Document::new(count as usize * 6144 + 1024, |document| {
        document.object(|document| {
            document.key("statuses").array(|document| {
                (0..count).for_each(|id| message(document, &mut rng, id, true));
            });
            document.key("search_metadata").object(|document| {
                document.key("completed_in").float(0.087);
                document.key("query").string("%E4%B8%80");
                document.key("count").integer(count);
            });
        });
    })
}

fn words(rng: &mut Rng, most: usize) -> String {
    let words: Vec<&str> = (0..rng.usize(0..=most)).map(|_| WORDS[rng.usize(..16)]).collect();
    words.join(" ")
}

fn message(document: &mut Document, rng: &mut Rng, id: u32, may_repeat: bool) {
    document.object(|document| {
        document.key("metadata").object(|document| {
            document.key("result_type").string("recent");
            document.key("iso_language_code").string("ja");
        });
        document.key("created_at").string("Sun Aug 31 00:29:15 +0000 2014");
        document.key("id_str").string(&format!("5058748{:010}", id * 37));
        document.key("text").string(&words(rng, 20));
        document.key("source").string("<a href=\"http://example.org/\" rel=\"nofollow\">web</a>");
        document.key("truncated").literal(Some(false));
        for key in ["in_reply_to_status_id", "in_reply_to_user_id", "geo", "coordinates", "place"] {
            document.key(key).literal(None);
        }
        document.key("user");
        user(document, rng);
        if may_repeat && rng.bool() {
            document.key("retweeted_status");
            message(document, rng, id + 1_000_000, false);
        }
        document.key("retweet_count").integer(rng.u32(0..500));
        document.key("favorite_count").integer(rng.u32(0..500));
        document.key("entities").object(|document| {
            for (key, most) in [("hashtags", 2), ("symbols", 0), ("urls", 1), ("mentions", 3)] {
                document.key(key).array(|document| {
                    (0..rng.usize(0..=most)).for_each(|_| entity(document, rng));
                });
            }
        });
        document.key("lang").string("ja");
    });
}

fn user(document: &mut Document, rng: &mut Rng) {
    const COUNTS: [&str; 5] =
        ["followers_count", "friends_count", "listed_count", "favourites_count", "statuses_count"];
    const FLAGS: [&str; 7] = [
        "protected",
        "geo_enabled",
        "verified",
        "is_translator",
        "default_profile",
        "following",
        "notifications",
    ];
    let id = rng.u32(1_000_000..);
    document.object(|document| {
        document.key("id").integer(id);
        document.key("id_str").string(&id.to_string());
        document.key("name").string(&words(rng, 3));
        document.key("screen_name").string(&format!("user_{id}"));
        document.key("location").string(&words(rng, 2));
        document.key("description").string(&words(rng, 25));
        document.key("url").literal(None);
        for key in COUNTS {
            document.key(key).integer(rng.u32(0..20_000));
        }
        for key in FLAGS {
            document.key(key).literal(Some(rng.bool()));
        }
        document.key("utc_offset").integer(32_400);
        for kind in ["background_image_url", "background_image_url_https", "image_url"] {
            let address = format!("http://pbs.example.org/profile_images/{id}/{kind}.png");
            document.key(&format!("profile_{kind}")).string(&address);
        }
        for kind in ["background", "link", "sidebar_border", "sidebar_fill", "text"] {
            let color = format!("{:06X}", rng.u32(..1 << 24));
            document.key(&format!("profile_{kind}_color")).string(&color);
        }
    });
}

fn entity(document: &mut Document, rng: &mut Rng) {
    document.object(|document| {
        document.key("text").string(&words(rng, 2));
        document.key("indices").array(|document| {
            document.integer(rng.u32(0..70));
            document.integer(rng.u32(70..140));
        });
    });
}

/// The programme of some theatres: small objects, which refer to one another by number.
pub(super) fn catalog(events: u32) -> Document {
    let mut rng = Rng::with_seed(8);
    const FIRST: u32 = 138_586_341;
    Document::new(events as usize * 3072 + 4096, |document| {
        document.object(|document| {
            for kind in ["areaNames", "audienceSubCategoryNames", "seatCategoryNames"] {
                document.key(kind).object(|document| {
                    for at in 0..20 {
                        let name = words(&mut rng, 3);
                        document.key(&(FIRST + at * 11).to_string()).string(&name);
                    }
                });
            }
            document.key("events").object(|document| {
                for id in (0..events).map(|at| FIRST + at * 30) {
                    document.key(&id.to_string());
                    event(document, &mut rng, id);
                }
            });
            document.key("performances").array(|document| {
                for id in (0..events).map(|at| FIRST + at * 30) {
                    performance(document, &mut rng, id);
                }
            });
        });
    })
}

fn event(document: &mut Document, rng: &mut Rng, id: u32) {
    document.object(|document| {
        document.key("description").literal(None);
        document.key("id").integer(id);
        document.key("logo").literal(None);
        document.key("name").string(&words(rng, 6));
        for key in ["subTopicIds", "topicIds"] {
            document.key(key).array(|document| {
                (0..rng.u32(1..5)).for_each(|_| document.integer(324_846_098 + rng.u32(0..20)));
            });
        }
        document.key("subjectCode").literal(None);
        document.key("subtitle").literal(None);
    });
}

fn performance(document: &mut Document, rng: &mut Rng, event: u32) {
    document.object(|document| {
        document.key("eventId").integer(event);
        document.key("id").integer(event + 1);
        document.key("logo").literal(None);
        document.key("prices").array(|document| {
            for _ in 0..rng.u32(1..5) {
                document.object(|document| {
                    document.key("amount").integer(rng.u32(10..200) * 500);
                    document.key("audienceSubCategoryId").integer(337_100_890);
                    document.key("seatCategoryId").integer(338_937_235 + rng.u32(0..50));
                });
            }
        });
        document.key("seatCategories").array(|document| {
            for _ in 0..rng.u32(1..5) {
                document.object(|document| {
                    document.key("areas").array(|document| {
                        for _ in 0..rng.u32(1..12) {
                            document.object(|document| {
                                document.key("areaId").integer(205_705_993 + rng.u32(0..20));
                                document.key("blockIds").array(|_| {});
                            });
                        }
                    });
                    document.key("seatCategoryId").integer(338_937_235 + rng.u32(0..50));
                });
            }
        });
        document.key("start").integer(rng.u32(1_372_701_600..1_400_000_000));
        document.key("venueCode").string("PLEYEL_PLEYEL");
    });
}

/// The outline of a country: pairs of numbers with many digits.
pub(super) fn outline(points: u32) -> Document {
    const LINE: u32 = 200;
    let mut rng = Rng::with_seed(9);
    let (mut longitude, mut latitude) = (-65.613_616_999_999_98, 43.420_273_000_000_01);
    Document::new(points as usize * 48 + 1024, |document| {
        document.object(|document| {
            document.key("type").string("FeatureCollection");
            document.key("features").array(|document| {
                document.object(|document| {
                    document.key("properties").object(|document| {
                        document.key("name").string("Somewhere");
                    });
                    document.key("geometry").object(|document| {
                        document.key("type").string("Polygon");
                        document.key("coordinates").array(|document| {
                            for _ in 0..points / LINE {
                                document.array(|document| {
                                    for _ in 0..LINE {
                                        longitude += rng.f64() * 0.02 - 0.01;
                                        latitude += rng.f64() * 0.02 - 0.01;
                                        document.array(|document| {
                                            document.float(longitude);
                                            document.float(latitude);
                                        });
                                    }
                                });
                            }
                        });
                    });
                });
            });
        });
    })
}
